//! The sender's events, and the sign that it lives.

use super::ClientLimits;
use super::connection::Connection;
use super::error::{EventsEnd, innermost};
use crate::control::api::{Event, MANIFEST_SYMBOLS_MAX, REASON_LEN_MAX};
use bytes::BytesMut;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// Bytes of one line.
const LINE_LEN_MAX: usize = 8 * 1024;

// JSON makes up to six characters of one byte of a reason, and a number of symbols has up to five.
const _: () = assert!(6 * REASON_LEN_MAX + 200 <= LINE_LEN_MAX);
const _: () = assert!(5 * MANIFEST_SYMBOLS_MAX + 200 <= LINE_LEN_MAX);

/// A subscription. While it lives the sender counts this receiver as alive.
pub struct EventStream {
    body: Incoming,
    buffer: BytesMut,
    /// When anything came here.
    pinged: Instant,
    /// The same, or by a pull.
    served: Instant,
    /// The same, or by the stream.
    heard: Instant,
    datagrams: u64,
    pulled: u64,
    silence_time_max: Duration,
    deafness_time_max: Duration,
    /// The body ends when the connection does.
    connection: Connection,
}

impl EventStream {
    pub(super) fn new(connection: Connection, body: Incoming, limits: &ClientLimits) -> Self {
        let now = Instant::now();
        Self {
            body,
            buffer: BytesMut::new(),
            pinged: now,
            served: now,
            heard: now,
            datagrams: 0,
            pulled: 0,
            silence_time_max: limits.silence_time_max,
            deafness_time_max: limits.deafness_time_max,
            connection,
        }
    }

    /// The next event; pings and unknown ones are passed over. Nothing is lost when the future is dropped
    /// before it is ready.
    pub async fn next(&mut self) -> Result<Event, EventsEnd> {
        loop {
            while let Some(event) = self.line()? {
                if !matches!(event, Event::Ping | Event::Unknown) {
                    return Ok(event);
                }
            }
            let frame = match timeout_at(self.due(), self.body.frame()).await {
                Err(_) => return Err(EventsEnd::Silent(self.pinged.elapsed())),
                Ok(None) => return Err(EventsEnd::Closed),
                Ok(Some(Err(error))) => return Err(EventsEnd::Lost(innermost(&error))),
                Ok(Some(Ok(frame))) => frame,
            };
            self.pinged = Instant::now();
            (self.served, self.heard) = (self.pinged, self.pinged);
            if let Ok(data) = frame.into_data() {
                self.buffer.extend_from_slice(&data);
            }
        }
    }

    /// So many authentic datagrams have come so far: while these come the sender's silence here does not count, unless
    /// it lasts ([`ClientLimits::deafness_time_max`]) or this machine's address has changed.
    pub fn heard_elsewhere(&mut self, datagrams: u64) {
        if datagrams != self.datagrams && !self.connection.is_stranded() {
            self.datagrams = datagrams;
            self.heard = Instant::now();
        }
    }

    /// The same of so many bytes of what is pulled.
    pub fn pulled_elsewhere(&mut self, bytes: u64) {
        if bytes != self.pulled && !self.connection.is_stranded() {
            self.pulled = bytes;
            self.served = Instant::now();
            self.heard = self.served;
        }
    }

    /// Whether the sender was heard here, or gave what was asked for, so lately that it lives.
    pub fn answers(&self) -> bool {
        self.served.elapsed() < self.silence_time_max
    }

    /// Until then something must come.
    fn due(&self) -> Instant {
        (self.heard + self.silence_time_max).min(self.pinged + self.deafness_time_max)
    }

    fn line(&mut self) -> Result<Option<Event>, EventsEnd> {
        let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') else {
            if self.buffer.len() > LINE_LEN_MAX {
                return Err(EventsEnd::Lost("an endless line".to_owned()));
            }
            return Ok(None);
        };
        let line = self.buffer.split_to(end + 1);
        let event = serde_json::from_slice(&line);
        event.map(Some).map_err(|error| EventsEnd::Lost(error.to_string()))
    }
}
