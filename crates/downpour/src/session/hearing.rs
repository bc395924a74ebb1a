//! Where a receiver hears its sender's stream, and what is to be said of that.

use super::ended::Unplaced;
use super::network::headers_len;
use crate::cli::{self, Fault, ReceivePlan};
use crate::object::{CHANGED, Obstacle};
use downpour_transport::control::{DataPath, Joined};
use downpour_transport::{Group, Interface, MulticastReceiver, RecvOptions};
use std::io::ErrorKind;

/// Less receive buffer than this loses bursts at 1 Gbit/s whenever the program has to wait 10 ms.
const BUFFER_LEN_GOOD: usize = 1 << 20;

/// Joins the stream; `None` when there is none to be heard here, with the reason as a notice. The interface that was named
/// must be usable at first; who has taken part before goes on without it.
pub(super) fn stream_in(
    plan: &ReceivePlan,
    joined: &Joined,
    has_been: bool,
) -> Result<(Option<MulticastReceiver>, Vec<String>), Fault> {
    let reply = &joined.reply;
    let Some(addr) = reply.group else { return Ok((None, Vec::new())) };
    let group = match Group::new(addr, reply.source) {
        Ok(group) => group,
        Err(error) => return Ok((None, vec![format!("the sender's group is unusable: {error}")])),
    };
    let wanted = plan.interface.as_ref().map(ToString::to_string);
    // The interface that leads to the sender hears its stream; else the one with the route to the group.
    let towards_sender =
        Some(joined.local.to_string()).filter(|_| addr.is_ipv4() == joined.local.is_ipv4());
    let first = wanted.clone().or(towards_sender);
    let chosen = Interface::choose(first.as_deref(), addr.ip()).or_else(|error| {
        if wanted.is_some() { Err(error) } else { Interface::choose(None, addr.ip()) }
    });
    let why = match chosen {
        Ok(interface) => match MulticastReceiver::join(&group, &interface, &RecvOptions::default())
        {
            Ok(stream) => return Ok((Some(stream), Vec::new())),
            Err(error) if error.kind() == ErrorKind::AddrInUse => format!(
                "{error}; another program has UDP port {}: end it, or let the sender take other --ports",
                group.port()
            ),
            Err(error) => error.to_string(),
        },
        Err(error) if wanted.is_some() && !has_been => {
            return Err(Fault::start(error.to_string(), "name another --interface"));
        }
        Err(error) => error.to_string(),
    };
    Ok((None, vec![format!("no multicast here, everything is pulled: {why}")]))
}

/// Why there is no stream here, if there should be one. A probe is as long as a symbol's datagram
/// (`docs/protocol.md#WIRE-7`).
pub(super) fn unreached(plan: &ReceivePlan, joined: &Joined) -> Option<String> {
    let reply = &joined.reply;
    let len = reply.geometry.datagram_len() + headers_len(reply.group.is_some_and(|g| g.is_ipv6()));
    match reply.path {
        DataPath::Tcp => None,
        DataPath::Udp | DataPath::Auto => {
            Some("UDP to or from the sender does not get through".to_owned())
        }
        DataPath::Multicast if reply.group.is_none() => {
            Some("the sender has no multicast: why, it says itself".to_owned())
        }
        DataPath::Multicast => {
            let elsewhere = plan.interface.as_ref().and_then(|named| elsewhere(named, joined));
            let elsewhere = elsewhere.unwrap_or_default();
            Some(format!(
                "multicast does not reach this machine{elsewhere}, or not in packets of {len} bytes (MTU)"
            ))
        }
    }
}

/// The stream was awaited on one interface, and the sender is reached by another one.
fn elsewhere(named: &cli::Interface, joined: &Joined) -> Option<String> {
    let by = Interface::named(&joined.local.to_string()).ok()?;
    let named = Interface::named(&named.to_string()).ok()?.name;
    let text =
        format!(" on {named}, which --interface names (the sender is reached by {})", by.name);
    (by.name != named).then_some(text)
}

pub(super) fn buffer_notice(granted: usize) -> Option<String> {
    (granted < BUFFER_LEN_GOOD).then(|| {
        format!(
            "the kernel grants a receive buffer of only {granted} bytes, so fast streams will lose \
             datagrams here: set sysctl net.core.rmem_max to 16777216 or more"
        )
    })
}

/// Of blocks whose bytes contradicted the manifest, in a session that ended for this reason.
pub(super) fn false_notice(
    blocks: u32,
    unplaced: &[Unplaced],
    failure: Option<&str>,
) -> Option<String> {
    // Of a file that changes, zeros are sent, often before the withdrawal is here; a pipe's input ends the session.
    let has_changed =
        |file: &Unplaced| matches!(file.obstacle, Obstacle::Withdrawn | Obstacle::NotAgreed);
    let or = match failure {
        _ if unplaced.iter().any(has_changed) => "files changed at the sender, or ",
        Some(why) if why.contains(CHANGED) => "the input changed at the sender, or ",
        _ => "",
    };
    (blocks > 0).then(|| {
        format!(
            "{blocks} blocks held false bytes: {or}somebody in the group forges symbols; none was \
             kept"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::{BUFFER_LEN_GOOD, CHANGED, Obstacle, Unplaced, buffer_notice, false_notice};
    use crate::object::EntryId;

    #[test]
    fn a_buffer_that_is_too_small_names_the_sysctl() {
        assert_eq!(buffer_notice(BUFFER_LEN_GOOD), None);
        let text = buffer_notice(212_992).unwrap();
        assert!(text.contains("212992") && text.contains("sysctl net.core.rmem_max"), "{text}");
    }

    #[test]
    fn false_bytes_may_be_of_a_file_that_changed() {
        let failed = |obstacle| {
            let (path, reason) = (String::new(), String::new());
            let unplaced = [Unplaced { entry: EntryId(0), path, obstacle, reason }];
            false_notice(1, &unplaced, None).unwrap()
        };
        for obstacle in [Obstacle::Withdrawn, Obstacle::NotAgreed] {
            assert!(failed(obstacle).contains("files changed at the sender, or somebody"));
        }
        assert!(failed(Obstacle::Failed).starts_with("1 blocks held false bytes: somebody"));
        assert_eq!(false_notice(0, &[], None), None);
        let ended = |why: &str| false_notice(1, &[], Some(why)).unwrap();
        let input = ended(&format!("the sender cannot go on: the input {CHANGED}"));
        assert!(input.contains("the input changed at the sender, or somebody"), "{input}");
        assert!(ended("the sender is lost").starts_with("1 blocks held false bytes: somebody"));
    }
}
