//! A tree of links, the sender at its root.
//!
//! Every edge has a rate, a queue, a delay, a loss process and times at which it is cut. What is lost on an
//! inner edge is lost for everybody behind it. As links are FIFOs, a datagram's arrival at every node is
//! computed when it leaves: one look at each edge, whatever the number of receivers behind it.

use crate::link::{Link, LinkConfig};
use crate::loss::{Loss, LossProcess};
use crate::rng::Rng;
use downpour_proto::{Duration, Rate, Timestamp};
use std::ops::Range;

/// A node of the tree; the sender is node 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeId(pub usize);

impl NodeId {
    /// Where the sender is.
    pub const SENDER: Self = Self(0);
}

/// The way from `parent` to a new node.
#[derive(Clone, Debug)]
pub struct EdgeConfig {
    /// Nearer to the sender; must exist.
    pub parent: NodeId,
    /// Rate, queue, delay.
    pub link: LinkConfig,
    /// What it loses besides.
    pub loss: Loss,
    /// When it is cut, in both directions.
    pub cuts: Vec<Range<Timestamp>>,
}

impl EdgeConfig {
    /// A lossless link from the sender.
    pub const fn from_sender(link: LinkConfig) -> Self {
        Self { parent: NodeId::SENDER, link, loss: Loss::None, cuts: Vec::new() }
    }
}

/// Whether `now` lies in one of `cuts`.
pub(crate) fn is_cut(cuts: &[Range<Timestamp>], now: Timestamp) -> bool {
    cuts.iter().any(|cut| cut.contains(&now))
}

#[derive(Debug)]
struct Edge {
    parent: usize,
    link: Link,
    delay: Duration,
    rate: Rate,
    loss: LossProcess,
    cuts: Vec<Range<Timestamp>>,
}

/// The tree at work.
#[derive(Debug)]
pub struct Network {
    edges: Vec<Edge>,
    /// Arrival of the datagram under way at each node.
    arrivals: Vec<Option<Timestamp>>,
}

impl Network {
    /// A tree of these edges; edge `i` leads to node `i + 1`.
    pub fn new(edges: Vec<EdgeConfig>, rng: &mut Rng) -> Self {
        let nodes = edges.len() + 1;
        let edges = edges.into_iter().enumerate().map(|(index, edge)| {
            assert!(edge.parent.0 <= index, "an edge starts at a node that exists");
            Edge {
                parent: edge.parent.0,
                delay: edge.link.delay,
                rate: edge.link.rate,
                link: Link::new(edge.link),
                loss: LossProcess::new(edge.loss, rng.fork()),
                cuts: edge.cuts,
            }
        });
        Self { edges: edges.collect(), arrivals: vec![None; nodes] }
    }

    /// Sends a frame of `len` bytes to all nodes; the arrival at each, by node.
    pub fn multicast(&mut self, now: Timestamp, len: u64) -> &[Option<Timestamp>] {
        self.arrivals[0] = Some(now);
        for (index, edge) in self.edges.iter_mut().enumerate() {
            self.arrivals[index + 1] = self.arrivals[edge.parent].and_then(|at| edge.pass(at, len));
        }
        &self.arrivals
    }

    /// Sends a frame to one node.
    pub fn unicast(&mut self, now: Timestamp, node: NodeId, len: u64) -> Option<Timestamp> {
        let mut at = now;
        for index in self.path(node) {
            at = self.edges[index].pass(at, len)?;
        }
        Some(at)
    }

    /// Propagation between the sender and `node`.
    pub fn delay(&self, node: NodeId) -> Duration {
        self.path(node).iter().map(|edge| self.edges[*edge].delay).sum()
    }

    /// The narrowest rate on the way to `node`.
    pub fn rate(&self, node: NodeId) -> Rate {
        let rates = self.path(node).into_iter().map(|edge| self.edges[edge].rate);
        rates.min().unwrap_or(Rate::MAX)
    }

    /// Whether the way is cut somewhere.
    pub fn is_cut(&self, now: Timestamp, node: NodeId) -> bool {
        self.path(node).iter().any(|edge| is_cut(&self.edges[*edge].cuts, now))
    }

    /// Frames that queues had no room for.
    pub fn dropped(&self) -> u64 {
        self.edges.iter().map(|e| e.link.dropped).sum()
    }

    /// Edges from the sender to `node`, in order.
    fn path(&self, node: NodeId) -> Vec<usize> {
        let mut path = Vec::new();
        let mut at = node.0;
        while at > 0 {
            path.push(at - 1);
            at = self.edges[at - 1].parent;
        }
        path.reverse();
        path
    }
}

impl Edge {
    fn pass(&mut self, now: Timestamp, len: u64) -> Option<Timestamp> {
        if is_cut(&self.cuts, now) {
            return None;
        }
        let at = self.link.send(now, len)?;
        if self.loss.is_lost() { None } else { Some(at) }
    }
}

#[cfg(test)]
mod tests {
    use super::{EdgeConfig, Network, NodeId};
    use crate::link::LinkConfig;
    use crate::loss::Loss;
    use crate::rng::Rng;
    use downpour_proto::{Duration, Timestamp};

    #[test]
    fn what_an_inner_edge_loses_is_lost_for_all_behind_it() {
        let wire = LinkConfig::wire(Duration::from_millis(5));
        let mut inner = EdgeConfig::from_sender(wire);
        inner.loss = Loss::Random(0.5);
        let behind = |parent| EdgeConfig { parent, ..EdgeConfig::from_sender(wire) };
        let edges = vec![inner, behind(NodeId(1)), behind(NodeId(1)), behind(NodeId(0))];
        let mut network = Network::new(edges, &mut Rng::new(1));
        let mut lost = 0;
        for _ in 0..1_000 {
            let at = network.multicast(Timestamp::ZERO, 100).to_vec();
            assert_eq!(at[1].is_some(), at[2].is_some());
            assert_eq!(at[2], at[3]);
            assert_eq!(at[4], Some(Timestamp::ZERO + Duration::from_millis(5)));
            lost += u32::from(at[1].is_none());
        }
        assert!((400..600).contains(&lost), "{lost}");
        assert_eq!(network.delay(NodeId(2)), Duration::from_millis(10));
    }

    #[test]
    fn a_cut_edge_passes_nothing() {
        let mut edge = EdgeConfig::from_sender(LinkConfig::wire(Duration::ZERO));
        let at = |s: u64| Timestamp::from_nanos(s * 1_000_000_000);
        edge.cuts.push(at(1)..at(2));
        let mut network = Network::new(vec![edge], &mut Rng::new(1));
        assert!(network.unicast(at(0), NodeId(1), 100).is_some());
        assert!(network.unicast(at(1), NodeId(1), 100).is_none());
        assert!(network.is_cut(at(1), NodeId(1)) && !network.is_cut(at(2), NodeId(1)));
    }
}
