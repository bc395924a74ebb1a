#!/bin/bash
# Three sites on loopback, everything once. usage: tour.sh PROGRAM FOLDER (made anew)
D=$(realpath "$1"); T=$(realpath "$2"); rm -rf $T; mkdir -p $T/data $T/spool; cd $T
for n in $(seq 20); do head -c 20000 /dev/urandom > data/$n; done; head -c 30000000 /dev/urandom > data/big
say() { echo; echo "### $*"; }
at() { local site=$1; shift; echo "\$ $site: downpour $*"; $D "$@" --config $T/$site/site.toml; echo "(exit $?)"; }
say init
$D init east --folder east --listen 127.0.0.1:29800 --address 127.0.0.1:29800
$D init west --folder west --listen 127.0.0.1:29801 --address 127.0.0.1:29801 --with east
$D init north --folder north --listen 127.0.0.1:29802 --address 127.0.0.1:29802 --with east --with west
cat >> east/site.toml <<X

[[spool]]
folder = "$T/spool"
complete = "rename"
[[rule]]
name = "raw"
match = "*"
to = "west"
digests = ["md5"]
X
python3 - <<X
import re
def edit(site, section, more):
    p=f"$T/{site}/site.toml"; s=open(p).read(); head=f"[{section}]\n"
    assert head in s, (site, section)
    s=s.replace(head, head+more+"\n",1); open(p,"w").write(s)
def remote(site, name, more):
    p=f"$T/{site}/site.toml"; s=open(p).read(); line=f'name = "{name}"\n'
    assert line in s, (site, name); s=s.replace(line, line+more+"\n",1); open(p,"w").write(s)
edit("east","transfer",'folders = ["$T/data"]')
edit("west","transfer",'folders = ["inbox"]')
remote("west","north","pull = true"); remote("north","east","orders = true"); remote("west","east","pull = true")
edit("north","mirror",'of = ["east", "west"]\nevery = "1s"')
X
say check
$D check east/site.toml; echo "(exit $?)"
sed 's/^folders = /foldres = /' east/site.toml > east/wrong.toml; $D check east/wrong.toml; echo "(exit $?)"
for s in east west north; do $D serve --config $s/site.toml > $s.log 2>&1 & echo $! > $s.pid; done
for s in east west north; do until $D service status --config $s/site.toml >/dev/null 2>&1; do sleep 0.2; done; done
at east service status
say submit
at east transfer submit data west --wait
say curl
head -c 5000000 /dev/urandom > spool/.run.root; mv spool/.run.root spool/run.root
until $D catalog search --catalog sqlite:east/state/catalog.db --prefix run.root --state receipted --json 2>/dev/null | grep -q run.root; do sleep 0.3; done
FILE=$($D catalog search --catalog sqlite:east/state/catalog.db --prefix run.root --json | python3 -c 'import json,sys; d=json.load(sys.stdin); print((d.get("files") or d)[0]["id"])')
TOKEN=$($D token new eye --role viewer --config east/site.toml | grep -o 'downpour-[A-Za-z0-9_-]*' | head -1)
KEY=$(openssl x509 -in east/state/node.crt -pubkey -noout | openssl pkey -pubin -outform der | openssl dgst -sha256 -binary | base64)
curl -sk --pinnedpubkey "sha256//$KEY" -H "Authorization: Bearer $TOKEN" -H "Want-Digest: md5, blake3" -D - -o got https://127.0.0.1:29800/v1/files/$FILE/content
cmp got spool/run.root && echo "the same bytes"; openssl dgst -md5 -binary got | base64
say SIGHUP
sed -i 's/^# *log = .*/log = "debug"/' east/site.toml; kill -HUP $(cat east.pid); sleep 1; grep -c DEBUG east.log; grep -i reload east.log | tail -1
cp east/site.toml east/right.toml; sed -i 's/^name = "east"/name = "other"/' east/site.toml; kill -HUP $(cat east.pid); sleep 1; grep -i refused east.log | tail -1; cp east/right.toml east/site.toml
say why
at east transfer drain west
head -c 1000 /dev/urandom > spool/.waits; mv spool/.waits spool/waits.root; sleep 2
at east transfer why
at east transfer open west
until [ -f west/inbox/waits.root ]; do sleep 0.2; done; echo "it went"
say quarantine
echo "900150983cd24fb0d6963f7d28e17f72" > spool/bad.md5; echo -n abd > spool/.bad; mv spool/.bad spool/bad
until $D spool quarantine --config east/site.toml | grep -q bad; do sleep 0.2; done
at east spool quarantine
echo -n abc > spool/.quarantine/bad
at east spool release bad
until [ -f west/inbox/bad ]; do sleep 0.2; done; cat west/inbox/bad; echo
say third party
at east transfer submit west:$T/west/inbox/big north --wait
until [ -f north/inbox/big ]; do sleep 0.2; done; cmp data/big north/inbox/big && echo "north has it, the same bytes"
say pull
at north transfer submit west:$T/west/inbox/7 north
until [ -f north/inbox/7 ]; do sleep 0.2; done; cmp data/7 north/inbox/7 && echo "pulled, the same bytes"
say events
$D events --past --config east/site.toml | tail -3
ADMIN=$(cat east/state/admin.token)
first() { curl -skN -m 2 "$@" -H "Authorization: Bearer $ADMIN" https://127.0.0.1:29800/v1/events; }
first -H "Last-Event-ID: 0-0" | grep ^id: | tail -1 | tee id
$D token new x --config east/site.toml >/dev/null; $D token revoke x --config east/site.toml >/dev/null
first -H "Last-Event-ID: $(cut -c5- id)"
say audit
at east audit --since 1h
at east audit --verify
say mirror
sleep 3; at north service status mirror
kill $(cat east.pid); while kill -0 $(cat east.pid) 2>/dev/null; do sleep 0.1; done; sleep 3
for sheet in files replicas receipts events; do $D catalog export --catalog sqlite:east/state/catalog.db --sheet $sheet > before.$sheet || echo "no $sheet"; done
mkdir lost; mv east/state/catalog.db* lost/
$D catalog rebuild --from-mirror north/state/mirror/east.db --catalog sqlite:east/state/catalog.db
for sheet in files replicas receipts events; do $D catalog export --catalog sqlite:east/state/catalog.db --sheet $sheet > after.$sheet; cmp before.$sheet after.$sheet && echo "$sheet: equal, $(wc -l < after.$sheet) lines"; done
$D serve --config east/site.toml >> east.log 2>&1 & echo $! > east.pid
until $D service status --config east/site.toml >/dev/null 2>&1; do sleep 0.2; done
at east catalog reconcile
say receipts
kill $(cat west.pid); while kill -0 $(cat west.pid) 2>/dev/null; do sleep 0.1; done
for sheet in files replicas receipts; do $D catalog export --catalog sqlite:west/state/catalog.db --sheet $sheet > wbefore.$sheet; done
mkdir lost/west; mv west/state/catalog.db* lost/west/
$D catalog rebuild --from-receipts west/inbox --site west --verify --catalog sqlite:west/state/catalog.db
for sheet in files replicas receipts; do $D catalog export --catalog sqlite:west/state/catalog.db --sheet $sheet > wafter.$sheet; wc -l wbefore.$sheet wafter.$sheet | head -2; done
$D serve --config west/site.toml >> west.log 2>&1 & echo $! > west.pid
until $D service status --config west/site.toml >/dev/null 2>&1; do sleep 0.2; done
at east catalog reconcile
at west catalog reconcile
say scrub
echo new > west/inbox/unknown; echo changed > west/inbox/waits.root; sleep 3
at west catalog reconcile --scrub
for s in east west north; do kill $(cat $s.pid); done
