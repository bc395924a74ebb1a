//! Settings of this machine that matter to its links: what they are, what they should be, and why. Nothing is changed.

use super::host::host;
use downpour_proto::Rate;
use downpour_proto::transfer::{Host, Measured, bdp};
use serde::Serialize;
use std::fmt::Write as _;
use std::time::Duration;

/// A link of this machine.
#[derive(Clone, Debug)]
pub struct Link {
    /// The other end.
    pub name: String,
    /// What is known of it.
    pub measured: Measured,
}

/// One setting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// Its name, as sysctl has it.
    pub name: String,
    /// What it is; absent when it cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub present: Option<String>,
    /// What it should be; absent when it is good as it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wanted: Option<String>,
    /// Why.
    pub why: String,
}

/// The link whose path holds most.
struct Longest<'a> {
    name: &'a str,
    rate: Rate,
    rtt: Duration,
    bytes: u64,
}

/// Twice what a path holds is what autotuning needs for it, book-keeping included.
const BOOKED: u64 = 2;
/// From this rate on a queue that paces by itself saves work.
const FAIR_QUEUE_FROM: Rate = Rate::from_mbps(1000);
/// Loss from which the default of most kernels is held back.
const LOSS_HARMS: f64 = 1e-4;

/// The settings of this machine, by its links.
pub fn settings(links: &[Link]) -> Vec<Setting> {
    let read = |name: &str| {
        let path = format!("/proc/sys/{}", name.replace('.', "/"));
        Some(std::fs::read_to_string(path).ok()?.split_whitespace().collect::<Vec<_>>().join(" "))
    };
    judge(&host(), links, &read)
}

/// Those that a plan looks at.
pub fn limits(host: &Host, links: &[Link]) -> Vec<Setting> {
    let longest = longest(links);
    vec![
        memory("net.ipv4.tcp_rmem", host.tcp_rmem, "receives", longest.as_ref()),
        memory("net.ipv4.tcp_wmem", host.tcp_wmem, "sends", longest.as_ref()),
        most("net.core.rmem_max", host.rmem_max, longest.as_ref()),
        most("net.core.wmem_max", host.wmem_max, longest.as_ref()),
        congestion(host, links),
    ]
}

fn judge(host: &Host, links: &[Link], read: &dyn Fn(&str) -> Option<String>) -> Vec<Setting> {
    let mut all = limits(host, links);
    for (name, why) in [
        ("net.ipv4.tcp_window_scaling", "without it no window is above 64 KiB"),
        ("net.ipv4.tcp_sack", "without it each loss of several segments costs as many round trips"),
        ("net.ipv4.tcp_timestamps", "without it sequence numbers wrap unseen at high rates"),
    ] {
        let present = read(name);
        let off = present.as_deref() == Some("0");
        all.push(setting(name, present, off.then(|| "1".to_owned()), why));
    }
    let name = "net.ipv4.tcp_mtu_probing";
    let present = read(name);
    let wanted = (present.as_deref() == Some("0")).then(|| "1".to_owned());
    let why = "a router that drops large packets in silence stops a connection for ever unless it tries smaller ones";
    all.push(setting(name, present, wanted, why));
    let name = "net.core.default_qdisc";
    let present = read(name);
    let fast = longest(links).is_some_and(|longest| longest.rate >= FAIR_QUEUE_FROM);
    let wanted = (fast && present.as_deref().is_some_and(|present| present != "fq"))
        .then(|| "fq".to_owned());
    let why = match fast {
        true => {
            "it spaces each connection's segments, so that a burst does not fill a queue on the way"
        }
        false => "no link is known to be so fast that segments had better be spaced by the queue",
    };
    all.push(setting(name, present, wanted, why));
    all
}

fn setting(
    name: &str,
    present: Option<String>,
    wanted: Option<String>,
    why: impl Into<String>,
) -> Setting {
    Setting { name: name.to_owned(), present, wanted, why: why.into() }
}

fn longest(links: &[Link]) -> Option<Longest<'_>> {
    let known = links.iter().filter_map(|link| {
        let (rate, rtt) = (link.measured.throughput.as_ref()?, link.measured.rtt.as_ref()?);
        let bytes = bdp(rate.value, rtt.value);
        Some(Longest { name: &link.name, rate: rate.value, rtt: rtt.value, bytes })
    });
    known.max_by_key(|longest| longest.bytes)
}

impl Longest<'_> {
    fn said(&self) -> String {
        let (rate, ms) = (self.rate, self.rtt.as_secs_f64() * 1e3);
        format!("{} to {}: {rate} × {ms:.1} ms", megabytes(self.bytes), self.name)
    }
}

fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

/// Limits of autotuning.
fn memory(name: &str, now: Option<[u64; 3]>, does: &str, longest: Option<&Longest<'_>>) -> Setting {
    let present = now.map(|[least, first, most]| format!("{least} {first} {most}"));
    let Some(longest) = longest else {
        return setting(name, present, None, "no link's rate and round trip are both known");
    };
    let need = longest.bytes.saturating_mul(BOOKED);
    let said = longest.said();
    match now {
        Some([least, first, most]) if most < need => {
            let rate = Rate::of(most / BOOKED, longest.rtt);
            let why = format!(
                "a connection that {does} alone needs {said}, and as much again for book-keeping; now it ends at {rate}"
            );
            setting(name, present, Some(format!("{least} {first} {need}")), why)
        }
        Some(_) => setting(name, present, None, format!("it suffices for {said}")),
        None => setting(
            name,
            None,
            Some(format!("4096 131072 {need}")),
            format!("for {said}, and as much again for book-keeping"),
        ),
    }
}

/// Limits of sizes that programs set.
fn most(name: &str, now: Option<u64>, longest: Option<&Longest<'_>>) -> Setting {
    let present = now.map(|most| most.to_string());
    let Some(longest) = longest else {
        return setting(name, present, None, "no link's rate and round trip are both known");
    };
    let said = longest.said();
    match now {
        Some(most) if most < longest.bytes => {
            let why = format!("a window that a program sets itself is cut to it; {said}");
            setting(name, present, Some(longest.bytes.to_string()), why)
        }
        Some(_) => setting(name, present, None, format!("it suffices for {said}")),
        None => setting(name, None, Some(longest.bytes.to_string()), format!("for {said}")),
    }
}

fn congestion(host: &Host, links: &[Link]) -> Setting {
    let name = "net.ipv4.tcp_congestion_control";
    let present = host.congestion_default().map(str::to_owned);
    let lossy = links.iter().filter_map(|link| Some((link, link.measured.loss.as_ref()?.value)));
    let worst = lossy.max_by(|a, b| a.1.total_cmp(&b.1)).filter(|(_, loss)| *loss >= LOSS_HARMS);
    let bbr = present.as_deref().is_some_and(|name| name.starts_with("bbr"));
    match worst {
        Some((link, loss)) if !bbr => {
            let why = format!(
                "{} % are lost to {}: this one does not take each loss for a full queue; it takes more than its share from others there",
                loss * 1e2,
                link.name
            );
            setting(name, present, Some("bbr".to_owned()), why)
        }
        _ => setting(
            name,
            present,
            None,
            "no link is known to lose so much that another were better",
        ),
    }
}

/// All of them, for people.
pub fn text(settings: &[Setting]) -> String {
    let mut text = String::new();
    for Setting { name, present, wanted, why } in settings {
        let present = present.as_deref().unwrap_or("cannot be read");
        let wanted = wanted.as_deref().unwrap_or("as it is");
        let _ =
            writeln!(text, "{name}\n  present  {present}\n  wanted   {wanted}\n  why      {why}");
    }
    text
}

/// Those that should be otherwise, as a file for /etc/sysctl.d.
pub fn sysctl(settings: &[Setting]) -> String {
    let mut text = String::new();
    for setting in settings {
        if let Some(wanted) = &setting.wanted {
            let _ = writeln!(text, "# {}\n{} = {wanted}", setting.why, setting.name);
        }
    }
    if text.is_empty() { "# nothing needs to be set\n".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::{Link, judge, sysctl, text};
    use downpour_proto::Rate;
    use downpour_proto::transfer::{Figure, Host, Measured};
    use std::time::Duration;

    const LIMITS: &str = "rmem_max=212992 wmem_max=212992 tcp_rmem=4096,131072,6291456 \
                          tcp_wmem=4096,16384,4194304 congestion=cubic,reno";

    fn read(name: &str) -> Option<String> {
        let value = match name {
            "net.core.default_qdisc" => "pfifo_fast",
            "net.ipv4.tcp_mtu_probing" => "0",
            _ => "1",
        };
        Some(value.to_owned())
    }

    fn link(mbps: u64, ms: u64, loss: f64) -> Link {
        let measured = Measured {
            throughput: Some(Figure::fresh(Rate::from_mbps(mbps), "test")),
            rtt: Some(Figure::fresh(Duration::from_millis(ms), "test")),
            loss: Some(Figure::fresh(loss, "test")),
        };
        Link { name: format!("west-{ms}"), measured }
    }

    #[test]
    fn the_longest_link_decides_and_each_setting_says_why() {
        let host = Host::parse(LIMITS);
        let found = judge(&host, &[link(1000, 10, 0.0), link(1000, 100, 1e-3)], &read);
        let wanted = |name: &str| {
            found.iter().find(|s| s.name.ends_with(name)).and_then(|s| s.wanted.as_deref())
        };
        assert_eq!(wanted("tcp_rmem"), Some("4096 131072 25000000"));
        assert_eq!(wanted("rmem_max"), Some("12500000"));
        assert_eq!((wanted("congestion_control"), wanted("qdisc")), (Some("bbr"), Some("fq")));
        assert_eq!((wanted("tcp_sack"), wanted("mtu_probing")), (None, Some("1")));
        let rmem = &found[0].why;
        assert!(rmem.contains("west-100") && rmem.contains("251.7 Mbit/s"), "{rmem}");
        assert!(sysctl(&found).contains("\nnet.ipv4.tcp_rmem = 4096 131072 25000000\n"));
        assert!(text(&found).contains("present  4096 131072 6291456"));
    }

    #[test]
    fn where_nothing_is_known_nothing_is_wanted_of_sizes() {
        let none = Link { name: "west".to_owned(), measured: Measured::default() };
        let found = judge(&Host::parse(LIMITS), &[none], &read);
        let sizes = found.iter().filter(|s| s.name.contains("mem"));
        assert!(sizes.clone().count() == 4 && sizes.clone().all(|s| s.wanted.is_none()));
        assert!(found[0].why.contains("known"), "{}", found[0].why);
    }

    #[test]
    fn what_suffices_stays() {
        let found = judge(&Host::parse(LIMITS), &[link(10, 10, 0.0)], &read);
        let wanted: Vec<_> =
            found.iter().filter(|s| s.wanted.is_some()).map(|s| s.name.as_str()).collect();
        assert_eq!(wanted, ["net.ipv4.tcp_mtu_probing"]);
    }
}
