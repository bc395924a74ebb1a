//! Who is connected, and who has to make room.
//!
//! A connection is *proven* once a request on it carried the right token. When a limit is reached, the
//! oldest connection that is not proven is ended in favour of the newcomer; when all are proven the newcomer
//! is turned away. So idle strangers, however many, do not keep a receiver from joining.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Notify;

/// The connections of a server.
#[derive(Debug)]
pub(super) struct Crowd {
    connections_max: usize,
    per_peer_max: usize,
    /// Connections that ended without proof.
    strangers: Arc<AtomicU64>,
    places: Mutex<Places>,
}

#[derive(Debug, Default)]
struct Places {
    /// Numbers given so far.
    count: u64,
    by_age: BTreeMap<u64, Entry>,
}

#[derive(Debug)]
struct Entry {
    peer: IpAddr,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    proven: AtomicBool,
    evicted: Notify,
}

impl Crowd {
    pub(super) fn new(
        connections_max: usize,
        per_peer_max: usize,
        strangers: Arc<AtomicU64>,
    ) -> Arc<Self> {
        let places = Mutex::default();
        Arc::new(Self { connections_max, per_peer_max, strangers, places })
    }

    /// A place for a connection from `peer`, `None` when there is none to be had.
    pub(super) fn enter(self: &Arc<Self>, peer: IpAddr) -> Option<Place> {
        let peer = peer.to_canonical();
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        if places.by_age.values().filter(|place| place.peer == peer).count() >= self.per_peer_max {
            evict(&mut places.by_age, |place| place.peer == peer)?;
        }
        if places.by_age.len() >= self.connections_max {
            evict(&mut places.by_age, |_| true)?;
        }
        let number = places.count;
        places.count += 1;
        let shared = Arc::new(Shared::default());
        places.by_age.insert(number, Entry { peer, shared: shared.clone() });
        Some(Place { crowd: self.clone(), number, shared })
    }

    /// Connections now.
    pub(super) fn len(&self) -> usize {
        self.places.lock().unwrap_or_else(PoisonError::into_inner).by_age.len()
    }

    /// Connections that have ended without proof.
    pub(super) fn strangers(&self) -> u64 {
        self.strangers.load(Ordering::Relaxed)
    }
}

fn evict(by_age: &mut BTreeMap<u64, Entry>, among: impl Fn(&Entry) -> bool) -> Option<()> {
    let idle = |entry: &Entry| !entry.shared.proven.load(Ordering::Relaxed);
    let (&number, _) = by_age.iter().find(|(_, place)| idle(place) && among(place))?;
    let place = by_age.remove(&number)?;
    place.shared.evicted.notify_one();
    Some(())
}

/// A place in the crowd, given back when dropped.
#[derive(Debug)]
pub(super) struct Place {
    crowd: Arc<Crowd>,
    number: u64,
    shared: Arc<Shared>,
}

impl Place {
    /// A right token came: this connection stays.
    pub(super) fn prove(&self) {
        self.shared.proven.store(true, Ordering::Relaxed);
    }

    /// Resolves when this connection has to make room.
    pub(super) async fn evicted(&self) {
        self.shared.evicted.notified().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.shared.proven.load(Ordering::Relaxed) {
            self.crowd.strangers.fetch_add(1, Ordering::Relaxed);
        }
        let mut places = self.crowd.places.lock().unwrap_or_else(PoisonError::into_inner);
        places.by_age.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::Crowd;
    use std::net::IpAddr;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    fn ip(last: u8) -> IpAddr {
        IpAddr::from([127, 0, 0, last])
    }

    #[tokio::test]
    async fn the_oldest_stranger_makes_room() {
        let strangers = Arc::<AtomicU64>::default();
        let crowd = Crowd::new(3, 3, strangers.clone());
        let known = crowd.enter(ip(1)).unwrap();
        known.prove();
        let stranger = crowd.enter(ip(2)).unwrap();
        let younger = crowd.enter(ip(3)).unwrap();
        let newcomer = crowd.enter(ip(4)).unwrap();
        stranger.evicted().await;
        drop(stranger);
        assert_eq!(crowd.len(), 3);
        younger.prove();
        newcomer.prove();
        assert!(crowd.enter(ip(5)).is_none(), "all are known");
        drop(known);
        assert!(crowd.enter(ip(5)).is_some());
        assert_eq!(strangers.load(Ordering::Relaxed), 2, "the one that made room, and the last");
    }

    #[tokio::test]
    async fn one_address_crowds_out_only_itself() {
        let crowd = Crowd::new(10, 2, Arc::default());
        let other = crowd.enter(ip(1)).unwrap();
        let first = crowd.enter(ip(2)).unwrap();
        let _second = crowd.enter(ip(2)).unwrap();
        let third = crowd.enter(ip(2)).unwrap();
        first.evicted().await;
        assert_eq!(crowd.len(), 3);
        drop((other, third));
        assert_eq!(crowd.len(), 1);
    }
}
