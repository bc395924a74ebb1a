//! What is known of a path before it is used: figures, each with its age and where it comes from.
//!
//! "No data" is `None`, never a number: a source that says −1, 0 by default or nothing brings no figure at all.
//! Deliberately absent: how figures are fetched and which of several is believed; that is the tuner's, outside.

use crate::time::Duration;
use crate::units::Rate;
use alloc::string::String;

/// A figure, where it comes from and how old it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Figure<T> {
    /// The figure, in its type's unit.
    pub value: T,
    /// Time since it was measured.
    pub age: Duration,
    /// Its source, by a name that an operator knows.
    pub origin: String,
}

impl<T> Figure<T> {
    /// A figure of just now.
    pub fn fresh(value: T, origin: impl Into<String>) -> Self {
        Self { value, age: Duration::ZERO, origin: origin.into() }
    }
}

/// What is known of a path in one direction; `None` is "no data".
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// What the path carried, of payload, when it was tried.
    pub throughput: Option<Figure<Rate>>,
    /// Round trip of an idle path.
    pub rtt: Option<Figure<Duration>>,
    /// Share of packets lost, 0 to 1.
    pub loss: Option<Figure<f64>>,
}

#[cfg(test)]
mod tests {
    use super::{Figure, Measured};
    use crate::time::Duration;

    #[test]
    fn nothing_is_known_unless_it_was_measured() {
        let none = Measured::default();
        assert!(none.throughput.is_none() && none.rtt.is_none() && none.loss.is_none());
        let rtt = Figure::fresh(Duration::from_millis(12), "ping");
        assert_eq!((rtt.age, rtt.origin.as_str()), (Duration::ZERO, "ping"));
    }
}
