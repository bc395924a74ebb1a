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
    /// What is known of the way there.
    pub outgoing: Measured,
    /// What is known of the way back.
    pub incoming: Measured,
}

impl Link {
    /// One of which the same is known both ways.
    pub fn alike(name: &str, measured: &Measured) -> Self {
        let (outgoing, incoming) = (measured.clone(), measured.clone());
        Self { name: name.to_owned(), outgoing, incoming }
    }
}

/// One setting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// Its name, as sysctl has it.
    pub name: String,
    /// What it is; absent when it cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub present: Option<String>,
    /// What it should be; absent when it is good as it is, or that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wanted: Option<String>,
    /// Whether enough is known to judge it.
    pub known: bool,
    /// Why, or what is not known.
    pub why: String,
}

/// Which way bytes go.
#[derive(Clone, Copy)]
enum Way {
    In,
    Out,
}

impl Way {
    fn of(self, link: &Link) -> &Measured {
        match self {
            Self::In => &link.incoming,
            Self::Out => &link.outgoing,
        }
    }
}

/// The link whose path holds most, one way.
struct Longest<'a> {
    name: &'a str,
    way: Way,
    rate: Rate,
    rtt: Duration,
    bytes: u64,
}

/// What TCP's largest window holds (RFC 7323, 2.3). Booked, the kernel's numbers hold no more either.
const WINDOW_MAX: u64 = 65_535 << 14;
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
    let (incoming, outgoing) = (longest(links, Way::In), longest(links, Way::Out));
    vec![
        memory("net.ipv4.tcp_rmem", host.tcp_rmem, &incoming),
        memory("net.ipv4.tcp_wmem", host.tcp_wmem, &outgoing),
        most("net.core.rmem_max", host.rmem_max, &incoming),
        most("net.core.wmem_max", host.wmem_max, &outgoing),
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
    all.push(queue(read("net.core.default_qdisc"), links));
    all
}

fn queue(present: Option<String>, links: &[Link]) -> Setting {
    let name = "net.core.default_qdisc";
    let rates = links.iter().filter_map(|link| Some(link.outgoing.throughput.as_ref()?.value));
    match rates.max() {
        None => unknown(name, present, "no link's rate from here is known"),
        Some(fastest) if fastest >= FAIR_QUEUE_FROM => {
            let why = "it spaces each connection's segments, so that a burst does not fill a queue on the way";
            let other = present.as_deref().is_some_and(|present| present != "fq");
            setting(name, present, other.then(|| "fq".to_owned()), why)
        }
        Some(_) => {
            let why =
                "no link is known to be so fast that segments had better be spaced by the queue";
            setting(name, present, None, why)
        }
    }
}

fn setting(
    name: &str,
    present: Option<String>,
    wanted: Option<String>,
    why: impl Into<String>,
) -> Setting {
    Setting { name: name.to_owned(), present, wanted, known: true, why: why.into() }
}

/// One of which too little is known.
fn unknown(name: &str, present: Option<String>, why: &str) -> Setting {
    Setting { known: false, ..setting(name, present, None, why) }
}

/// The error says what is not known.
fn longest(links: &[Link], way: Way) -> Result<Longest<'_>, &'static str> {
    let known = links.iter().filter_map(|link| {
        let Measured { throughput, rtt, .. } = way.of(link);
        let (rate, rtt) = (throughput.as_ref()?.value, rtt.as_ref()?.value);
        Some(Longest { name: &link.name, way, rate, rtt, bytes: bdp(rate, rtt) })
    });
    known.max_by_key(|longest| longest.bytes).ok_or(match way {
        Way::In => "no link's round trip and rate to here are both known",
        Way::Out => "no link's round trip and rate from here are both known",
    })
}

impl Longest<'_> {
    fn said(&self) -> String {
        let (rate, ms) = (self.rate, self.rtt.as_secs_f64() * 1e3);
        let way = if matches!(self.way, Way::In) { "from" } else { "to" };
        let said = format!("{} {way} {}: {rate} × {ms:.1} ms", megabytes(self.bytes), self.name);
        if self.bytes <= WINDOW_MAX {
            return said;
        }
        format!("{said}, of which one connection holds {} at most", megabytes(WINDOW_MAX))
    }

    /// What one connection can hold of it.
    fn window(&self) -> u64 {
        self.bytes.min(WINDOW_MAX)
    }
}

fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

/// Limits of autotuning.
fn memory(
    name: &str,
    now: Option<[u64; 3]>,
    longest: &Result<Longest<'_>, &'static str>,
) -> Setting {
    let present = now.map(|[least, first, most]| format!("{least} {first} {most}"));
    let longest = match longest {
        Ok(longest) => longest,
        Err(why) => return unknown(name, present, why),
    };
    let need = longest.window() * BOOKED;
    let said = longest.said();
    match now {
        Some([least, first, most]) if most < need => {
            let rate = Rate::of(most / BOOKED, longest.rtt);
            let does = if matches!(longest.way, Way::In) { "receives" } else { "sends" };
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
fn most(name: &str, now: Option<u64>, longest: &Result<Longest<'_>, &'static str>) -> Setting {
    let present = now.map(|most| most.to_string());
    let longest = match longest {
        Ok(longest) => longest,
        Err(why) => return unknown(name, present, why),
    };
    let said = longest.said();
    match now {
        Some(most) if most < longest.window() => {
            let why = format!("a window that a program sets itself is cut to it; {said}");
            setting(name, present, Some(longest.window().to_string()), why)
        }
        Some(_) => setting(name, present, None, format!("it suffices for {said}")),
        None => setting(name, None, Some(longest.window().to_string()), format!("for {said}")),
    }
}

fn congestion(host: &Host, links: &[Link]) -> Setting {
    let name = "net.ipv4.tcp_congestion_control";
    let present = host.congestion_default().map(str::to_owned);
    let lossy =
        links.iter().filter_map(|link| Some((&link.name, link.outgoing.loss.as_ref()?.value)));
    let worst = lossy.max_by(|a, b| a.1.total_cmp(&b.1));
    let bbr = present.as_deref().is_some_and(|name| name.starts_with("bbr"));
    match worst {
        Some((link, loss)) if loss >= LOSS_HARMS && !bbr => {
            let why = format!(
                "{} % are lost to {link}: this one does not take each loss for a full queue; it takes more than its share from others there",
                loss * 1e2
            );
            setting(name, present, Some("bbr".to_owned()), why)
        }
        None if !bbr => unknown(name, present, "no link's loss from here is known"),
        _ => {
            let why = "no link is known to lose so much that another were better";
            setting(name, present, None, why)
        }
    }
}

/// All of them, for people.
pub fn text(settings: &[Setting]) -> String {
    let mut text = String::new();
    for Setting { name, present, wanted, known, why } in settings {
        let present = present.as_deref().unwrap_or("cannot be read");
        let good = if *known { "as it is" } else { "not known" };
        let wanted = wanted.as_deref().unwrap_or(good);
        let _ =
            writeln!(text, "{name}\n  present  {present}\n  wanted   {wanted}\n  why      {why}");
    }
    text
}

/// Those that should be otherwise, as a file for /etc/sysctl.d; those that are not known, as comments.
pub fn sysctl(settings: &[Setting]) -> String {
    let mut text = String::new();
    for Setting { name, wanted, known, why, .. } in settings {
        if let Some(wanted) = wanted {
            let _ = writeln!(text, "# {why}\n{name} = {wanted}");
        } else if !known {
            let _ = writeln!(text, "# not known: {name}: {why}");
        }
    }
    if text.is_empty() { "# nothing needs to be set\n".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::{Link, judge, limits, sysctl, text};
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

    fn measured(mbps: u64, ms: u64, loss: f64) -> Measured {
        Measured {
            throughput: Some(Figure::fresh(Rate::from_mbps(mbps), "test")),
            rtt: Some(Figure::fresh(Duration::from_millis(ms), "test")),
            loss: Some(Figure::fresh(loss, "test")),
        }
    }

    fn link(mbps: u64, ms: u64, loss: f64) -> Link {
        Link::alike(&format!("west-{ms}"), &measured(mbps, ms, loss))
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
        let none = Link::alike("west", &Measured::default());
        let found = judge(&Host::parse(LIMITS), &[none], &read);
        let sizes = found.iter().filter(|s| s.name.contains("mem"));
        assert!(sizes.clone().count() == 4 && sizes.clone().all(|s| s.wanted.is_none()));
        assert!(found[0].why.contains("known"), "{}", found[0].why);
        // That is not the same as good.
        let lines = sysctl(&limits(&Host::parse(LIMITS), &[]));
        assert_eq!(lines.matches("# not known: net.").count(), 5, "{lines}");
        assert_eq!(lines.lines().count(), 5, "{lines}");
        assert!(text(&found).contains("6291456\n  wanted   not known\n"), "{}", text(&found));
    }

    #[test]
    fn each_way_decides_on_what_it_goes_through() {
        let mut link = link(10, 10, 0.0);
        let slow = limits(&Host::parse(LIMITS), std::slice::from_ref(&link));
        assert_eq!(sysctl(&slow), "# nothing needs to be set\n");
        link.incoming = measured(1000, 100, 1e-3);
        let back = sysctl(&limits(&Host::parse(LIMITS), std::slice::from_ref(&link)));
        assert!(back.contains("net.ipv4.tcp_rmem = ") && back.contains("receives"), "{back}");
        assert!(back.contains("net.core.rmem_max = ") && back.contains(" from west-10"), "{back}");
        assert!(!back.contains("wmem") && !back.contains("congestion"), "{back}");
        (link.outgoing, link.incoming) = (link.incoming, Measured::default());
        let there = sysctl(&limits(&Host::parse(LIMITS), &[link]));
        assert!(there.contains("net.ipv4.tcp_wmem = ") && there.contains(" = bbr\n"), "{there}");
        assert!(there.contains("# not known: net.ipv4.tcp_rmem: "), "{there}");
    }

    #[test]
    fn no_more_is_wanted_than_a_window_holds() {
        let path = [link(100_000, 90, 0.0)];
        let found = limits(&Host::parse(LIMITS), &path);
        let lines = sysctl(&found);
        assert!(lines.contains("net.ipv4.tcp_rmem = 4096 131072 2147450880\n"), "{lines}");
        assert!(lines.contains("net.core.wmem_max = 1073725440\n"), "{lines}");
        assert!(lines.contains("of which one connection holds 1073.7 MB at most"), "{lines}");
        let all = "rmem_max=2147483647 wmem_max=2147483647 tcp_rmem=4096,131072,2147483647 \
                   tcp_wmem=4096,16384,2147483647 congestion=cubic";
        let suffices = limits(&Host::parse(all), &path);
        assert!(suffices.iter().all(|s| s.wanted.is_none()), "{suffices:?}");
    }

    #[test]
    fn what_suffices_stays() {
        let found = judge(&Host::parse(LIMITS), &[link(10, 10, 0.0)], &read);
        let wanted: Vec<_> =
            found.iter().filter(|s| s.wanted.is_some()).map(|s| s.name.as_str()).collect();
        assert_eq!(wanted, ["net.ipv4.tcp_mtu_probing"]);
    }
}
