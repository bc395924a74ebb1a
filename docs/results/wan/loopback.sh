#!/bin/bash
# Ours and iperf3 by turns over loopback. usage: loopback.sh PROGRAM FILE RUNS [STREAMS…]   (FILE on tmpfs; in `unshare -n` nobody is disturbed)
# Prints GB/s and CPU s/GB of each run, then the medians: the table of docs/results/wan.md.
D=$(realpath "$1"); FILE=$(realpath "$2"); RUNS=$3; shift 3
ip link set lo up; T=$(mktemp -d); trap 'rm -rf $T' EXIT; export HOME=$T; S=$(stat -c %s "$FILE")
for P in ${@:-1 4 8}; do
  for ((run = 0; run < RUNS; run++)); do
    $D ticket new --address 127.0.0.1:28810 --out $T/ticket >/dev/null 2>&1; START=$(date +%s.%N)
    /usr/bin/time -a -o $T/cpu.$P -f "send %e %U %S %M" $D send "$FILE" --receivers 1 --listen 127.0.0.1:28810 --interface lo --path tcp --ticket $T/ticket --quiet >/dev/null 2>&1 & SENDER=$!
    /usr/bin/time -a -o $T/cpu.$P -f "receive %e %U %S %M" $D receive @$T/ticket --discard --interface lo --connections $P --quiet 2>/dev/null
    wait $SENDER; END=$(date +%s.%N)
    iperf3 -s -1 >/dev/null & SERVER=$!; sleep 0.3
    iperf3 -c 127.0.0.1 -P $P -n $S -J > $T/iperf.json; wait $SERVER
    python3 - $P $S $START $END $T/iperf.json <<'X' | tee -a $T/all
import json, sys
streams, size, start, end = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
peer = json.load(open(sys.argv[5]))["end"]["sum_received"]["bits_per_second"] / 8e9
ours = size / (end - start) / 1e9
print(f"{streams} streams: {ours:.2f} GB/s, iperf3 {peer:.2f}, ratio {ours / peer:.2f}", flush=True)
X
  done
  awk -v s=$S -v p=$P '{ cpu[$1] += ($3 + $4) / s * 1e9; n[$1]++; if ($5 > m[$1]) m[$1] = $5 } END { for (w in cpu) printf "%d streams: %s %.2f s/GB, %d MB\n", p, w, cpu[w] / n[w], m[w] / 1024 }' $T/cpu.$P
done
python3 - $T/all <<'X'
import re, statistics, sys
rows = [re.findall(r"[\d.]+", line) for line in open(sys.argv[1])]
for streams in sorted({row[0] for row in rows}, key=int):
    columns = [[float(row[i]) for row in rows if row[0] == streams] for i in (1, 3, 4)]
    print(f"| {streams} | " + " | ".join(f"{statistics.median(c):.2f} ({min(c):.2f} – {max(c):.2f})" for c in columns) + " |")
X
