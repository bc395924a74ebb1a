//! Feeds of products: what is inserted when, and what an ideal system would make of it.
//!
//! `ngrid` is a real one: an hour of the NGRID feed of 15 June 2015, a line for each product with its size and time of
//! insertion (yyyymmddHHMMSS.mmm), from the file that `$LAB_NGRID` names. The others are synthetic: made from a seed,
//! with sizes and bursts like those of feeds that are described but not published.

use crate::experiment::Cell;
use crate::units::Rate;
use std::io;
use std::time::Duration;

/// A product: when it is inserted, since the beginning, and its bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Product {
    pub(crate) at_s: f64,
    pub(crate) size: u64,
}

/// Where the real feed's file is named.
const NGRID: &str = "LAB_NGRID";

/// Synthetic feeds: name, mean seconds between bursts, products in a burst, least size, and the exponent by which sizes
/// spread above it (smaller: wider), largest size.
const SYNTHETIC: &[(&str, f64, u64, f64, f64, f64)] = &[
    // Bulletins: ten a second, hundreds of bytes to a few kB.
    ("synthetic-text", 0.1, 1, 150.0, 1.1, 2e4),
    // Radar: five products of 10 to 100 kB each half second.
    ("synthetic-radar", 0.5, 5, 1e4, 1.2, 2e5),
    // A model's output: each five seconds a burst of forty fields of 50 kB to 3 MB.
    ("synthetic-model", 5.0, 40, 5e4, 1.1, 3e6),
];

/// The products of a cell, its clock run at its speed; `None` when it has no feed.
pub(crate) fn products(cell: &Cell) -> io::Result<Option<Vec<Product>>> {
    let Some(name) = &cell.feed else { return Ok(None) };
    let (from, until) = (cell.feed_from.0.as_secs_f64(), cell.feed_for.0.as_secs_f64());
    let until = from + until;
    let all = match name.as_str() {
        "ngrid" => {
            let path = std::env::var(NGRID).map_err(|_| {
                io::Error::other(format!("set ${NGRID} to the file with the feed's hour"))
            })?;
            let text = std::fs::read_to_string(&path)
                .map_err(|error| io::Error::other(format!("{path}: {error}")))?;
            parse(&text).ok_or_else(|| io::Error::other(format!("{path}: not such a file")))?
        }
        name => made(name, until)
            .ok_or_else(|| io::Error::other(format!("there is no feed `{name}`")))?,
    };
    let here = all.into_iter().filter(|product| (from..until).contains(&product.at_s));
    let scaled =
        |product: Product| Product { at_s: (product.at_s - from) / cell.feed_speed, ..product };
    let products: Vec<Product> = here.map(scaled).collect();
    if products.is_empty() {
        let why = format!("no product of {name} lies between {from} s and {until} s");
        return Err(io::Error::other(why));
    }
    Ok(Some(products))
}

/// Seconds since the first hour's beginning.
fn parse(text: &str) -> Option<Vec<Product>> {
    let mut midnight = None;
    let line = |line: &str| {
        let (size, time) = line.split_once(' ')?;
        let part = |from: usize, until: usize| time.get(from..until)?.parse::<f64>().ok();
        let at_s = part(8, 10)? * 3600.0 + part(10, 12)? * 60.0 + part(12, time.len())?;
        let first = *midnight.get_or_insert((at_s / 3600.0).floor() * 3600.0);
        Some(Product { at_s: at_s - first, size: size.parse().ok()? })
    };
    text.lines().map(line).collect()
}

fn made(name: &str, until: f64) -> Option<Vec<Product>> {
    let (_, every, burst, least, exponent, most) =
        *SYNTHETIC.iter().find(|(known, ..)| *known == name)?;
    let mut rng = fastrand::Rng::with_seed(1);
    let (mut at, mut all) = (0.0, Vec::new());
    while at < until {
        for _ in 0..burst {
            let size = (least / (1.0 - rng.f64()).powf(1.0 / exponent)).min(most);
            all.push(Product { at_s: at, size: size as u64 });
        }
        at -= every * (1.0 - rng.f64()).ln();
    }
    Some(all)
}

/// Σ latency of an ideal system in seconds: products go one after another at `rate`, on a link that has `saved` up after a
/// pause; each arrives `delay` after its last bit has left, and nothing is added to them.
pub(crate) fn ideal_fifo(
    products: &[Product],
    rate: Rate,
    (delay, saved): (Duration, Duration),
) -> f64 {
    let (mut free, mut sum) = (0.0_f64, 0.0);
    for product in products {
        free = free.max(product.at_s) + product.size as f64 * 8.0 / rate.0 as f64;
        let left = (free - saved.as_secs_f64()).max(product.at_s);
        sum += left - product.at_s + delay.as_secs_f64();
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::{Product, ideal_fifo, made, parse};
    use crate::units::Rate;
    use std::time::Duration;

    #[test]
    fn an_ideal_fifo_serves_one_after_another() {
        // 100 ms each at 80 kbit/s: the second waits 40 ms for the first, the third for nobody.
        let products = [0.0, 0.06, 0.5].map(|at_s| Product { at_s, size: 1_000 });
        let sum = |saved_ms| {
            let saved = Duration::from_millis(saved_ms);
            ideal_fifo(&products, Rate(80_000), (Duration::from_millis(7), saved))
        };
        assert!((sum(0) - 0.361).abs() < 1e-9, "{}", sum(0));
        // A tenth of the first and third leaves at once; the second waits the less for the first.
        assert!((sum(10) - 0.331).abs() < 1e-9, "{}", sum(10));
        assert!(ideal_fifo(&[], Rate(1), (Duration::ZERO, Duration::ZERO)).abs() < 1e-9);
    }

    #[test]
    fn the_real_feed_has_its_format() {
        let text = "90654 20150615000000.009\n133 20150615005959.500\n";
        let products = parse(text).unwrap();
        assert_eq!(products[0], Product { at_s: 0.009, size: 90_654 });
        assert_eq!(products[1], Product { at_s: 3599.5, size: 133 });
        assert!(parse("no such thing").is_none());
    }

    #[test]
    fn synthetic_feeds_are_the_same_each_time() {
        let feed = made("synthetic-model", 60.0).unwrap();
        assert_eq!(made("synthetic-model", 60.0).unwrap(), feed);
        assert!(feed.len() > 100 && feed.iter().all(|p| (50_000..=3_000_000).contains(&p.size)));
        assert!(made("no such feed", 60.0).is_none());
    }
}
