//! The sending machine alone in a session of products: what it sends of each symbol.

use downpour_proto::rate::Fixed;
use downpour_proto::sender::{Delivery, Work, WorkDone};
use downpour_proto::wire::Kind;
use downpour_proto::{
    BlockId, Duration, Epoch, Geometry, PULL_SHARE_DEFAULT, Parity, Rate, ReceiverId, Sender,
    SenderConfig, StreamId, Timestamp,
};

const GEOMETRY: Geometry = Geometry { symbol_len: 1440, block_symbols: 16, ..Geometry::IPV4 };

/// Symbols of each block.
const K: u16 = 3;

/// Sends two blocks of [`K`] symbols, the last of which is zeros from `tail` on: the bodies' lengths. They must be what
/// the machine counts, and what the pacer takes time for.
fn bodies(open: bool, tail: u16) -> Vec<usize> {
    let rate = Rate::from_mbps(10);
    let config = SenderConfig {
        geometry: GEOMETRY,
        stream: StreamId(1),
        epoch: Epoch(0),
        rate: Box::new(Fixed::new(rate)),
        recovery: Box::new(Parity::default()),
        initial_rtt: Duration::from_millis(1),
        window_blocks: 8,
        pull_share: PULL_SHARE_DEFAULT,
    };
    let mut now = Timestamp::ZERO;
    let mut sender = Sender::new(config, now);
    assert!(sender.join(now, ReceiverId(1), Delivery::Stream));
    if open {
        sender.stay_open(now);
    }
    sender.start(now);
    (0..2).for_each(|number| sender.offer(now, BlockId::data(number).expect("small"), K));
    let (mut message, mut lens, mut left) = (Vec::new(), Vec::new(), 2 * K);
    let (mut bytes, mut last_at) = (0, now);
    while left > 0 {
        while let Some(transmit) = sender.poll_transmit(now, &mut message) {
            bytes += transmit.datagram_len() as u64;
            if let Kind::Symbol { .. } = transmit.header.kind {
                lens.push(transmit.body_len);
                (left, last_at) = (left - 1, now);
            } else {
                assert_eq!(transmit.body_len, message.len());
            }
        }
        while let Some(work) = sender.poll_work() {
            if let Work::Load { block, .. } = work {
                sender.handle_work(now, WorkDone::Loaded { block, tail });
            }
        }
        while sender.poll_event().is_some() {}
        now = sender.poll_timeout().expect("there is more to come").at.max(now);
        sender.handle_timeout(now);
    }
    let stats = sender.stats();
    assert_eq!(stats.bytes, bytes);
    let full = usize::from(GEOMETRY.symbol_len) * lens.len();
    assert_eq!(stats.cut_bytes, (full - lens.iter().sum::<usize>()) as u64);
    // Bursts are of one datagram at this rate: all but the last have had their time.
    let sent = rate.bytes_in(last_at.since(Timestamp::ZERO));
    assert!(sent.abs_diff(bytes) <= 2 * 1472, "{sent} bytes' time for {bytes}");
    lens
}

/// `docs/protocol.md#PROD-13`.
#[test]
fn the_zeros_at_a_blocks_end_are_not_sent_in_a_session_of_products() {
    assert_eq!(bodies(true, 100), [1440, 1440, 100, 1440, 1440, 100]);
    assert_eq!(bodies(true, 1440), [1440; 6]);
    assert_eq!(bodies(true, 0), [1440, 1440, 1, 1440, 1440, 1], "a symbol of zeros is a symbol");
    assert_eq!(bodies(false, 100), [1440; 6], "WIRE-3");
}
