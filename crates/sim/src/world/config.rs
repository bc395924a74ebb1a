//! What a world is made of.

use super::products::Product;
use crate::hiccups::Hiccups;
use crate::link::LinkConfig;
use crate::loss::Loss;
use crate::network::{EdgeConfig, NodeId};
use downpour_proto::rate::{Auto, Fixed};
use downpour_proto::{Duration, Geometry, PULL_SHARE_DEFAULT, Rate, Timestamp};
use std::ops::Range;

/// Everything about a world.
#[derive(Clone, Debug)]
pub struct WorldConfig {
    /// Of all randomness.
    pub seed: u64,
    /// The inner network; edge `i` leads to node `i + 1`.
    pub edges: Vec<EdgeConfig>,
    /// Who listens.
    pub receivers: Vec<ReceiverConfig>,
    /// Bytes of data.
    pub data_len: u64,
    /// Products of a session that stays open, by time; then there are no other data.
    pub products: Vec<Product>,
    /// Bytes of manifest, sent first.
    pub manifest_len: u64,
    /// Symbols and blocks.
    pub geometry: Geometry,
    /// Who decides the rate.
    pub controller: Controller,
    /// The rate is never above this.
    pub ceiling: Option<Rate>,
    /// Share of all that is sent that pulls get while the stream runs.
    pub pull_share: f64,
    /// Blocks that the sender keeps open at most.
    pub window_blocks: usize,
    /// Blocks that a receiver keeps at most.
    pub partial_blocks: usize,
    /// How long reading a block takes the sender.
    pub load_time: Duration,
    /// How long coding a batch of repair takes the sender, rebuilding a block a receiver.
    pub code_time: Duration,
    /// How busy the sender's host is.
    pub hiccups: Hiccups,
    /// Share of feedback that gets lost.
    pub feedback_loss: f64,
    /// Share of polls that get lost besides, for each receiver.
    pub poll_loss: f64,
    /// The run ends at the latest at this time.
    pub end: Duration,
    /// Every symbol is followed and checked, and how the session ends; costs memory and time.
    pub check: bool,
    /// Prints a line for each report that the rate controller takes.
    pub trace: bool,
}

/// Which rate controller.
#[derive(Clone, Copy, Debug)]
pub enum Controller {
    /// [`Auto`].
    Auto,
    /// [`Fixed`].
    Fixed(Rate),
}

impl Controller {
    pub(super) fn build(self) -> Box<dyn downpour_proto::rate::RateController> {
        match self {
            Self::Auto => Box::new(Auto::new(Timestamp::ZERO)),
            Self::Fixed(rate) => Box::new(Fixed::new(rate)),
        }
    }
}

/// One receiver and the last edge on its way.
#[derive(Clone, Debug)]
pub struct ReceiverConfig {
    /// Where its edge begins.
    pub node: NodeId,
    /// Rate, queue and delay of its edge.
    pub link: LinkConfig,
    /// What its edge loses.
    pub loss: Loss,
    /// Up to so much later, each datagram on its own: datagrams overtake each other.
    pub jitter: Duration,
    /// Share of datagrams that come twice.
    pub duplicates: f64,
    /// How busy its host is.
    pub hiccups: Hiccups,
    /// When its process stands still; what comes meanwhile it finds at the end.
    pub stops: Option<Range<Timestamp>>,
    /// When it joins.
    pub joins: Duration,
    /// When its machine dies, if it does.
    pub dies: Option<Duration>,
    /// When its edge is cut.
    pub cuts: Vec<Range<Timestamp>>,
    /// How long its store needs for a block.
    pub store_time: Duration,
    /// When a store that needs time begins with none.
    pub stalls: Vec<Range<Timestamp>>,
    /// Multicast does not reach it: it pulls from the start.
    pub pull_only: bool,
}

impl ReceiverConfig {
    /// One that is there from the start, behind a clean edge from `node` with this delay.
    pub const fn at(node: NodeId, delay: Duration) -> Self {
        Self {
            node,
            link: LinkConfig::wire(delay),
            loss: Loss::None,
            jitter: Duration::ZERO,
            duplicates: 0.0,
            hiccups: Hiccups::NONE,
            stops: None,
            joins: Duration::ZERO,
            dies: None,
            cuts: Vec::new(),
            store_time: Duration::ZERO,
            stalls: Vec::new(),
            pull_only: false,
        }
    }

    /// With this loss on its edge.
    #[must_use]
    pub const fn losing(mut self, loss: Loss) -> Self {
        self.loss = loss;
        self
    }

    /// Its datagrams may not come in the order and at the pace of its node's.
    pub(super) fn is_rough(&self) -> bool {
        self.link.rate != Rate::MAX || !self.jitter.is_zero() || self.duplicates > 0.0
    }
}

impl WorldConfig {
    /// `receivers` behind one shared link of `rate` with a 20 ms queue; half of `rtt` is on it.
    pub fn star(receivers: usize, rate: Rate, rtt: Duration, loss: Loss) -> Self {
        let link = LinkConfig::bottleneck(rate, Duration::from_millis(20), rtt / 4);
        let receiver = ReceiverConfig::at(NodeId(1), rtt / 4).losing(loss);
        Self {
            seed: 1,
            edges: vec![EdgeConfig::from_sender(link)],
            receivers: vec![receiver; receivers],
            data_len: 16 << 20,
            products: Vec::new(),
            manifest_len: 40_000,
            geometry: Geometry::IPV4,
            controller: Controller::Auto,
            ceiling: None,
            pull_share: PULL_SHARE_DEFAULT,
            window_blocks: 64,
            partial_blocks: 128,
            load_time: Duration::from_micros(500),
            code_time: Duration::from_micros(500),
            hiccups: Hiccups::NONE,
            feedback_loss: 0.0,
            poll_loss: 0.0,
            end: Duration::from_secs(600),
            check: true,
            trace: false,
        }
    }

    /// All hosts are busy: the receivers' processes stand still for 5 to 20 ms in each stretch of `every`,
    /// the sender's half as often for 1 to 20 ms.
    pub fn make_busy(&mut self, every: Duration) {
        let ms = Duration::from_millis;
        self.hiccups = Hiccups::new(every * 2, ms(1), ms(20));
        for receiver in &mut self.receivers {
            receiver.hiccups = Hiccups::new(every, ms(5), ms(20));
        }
    }
}
