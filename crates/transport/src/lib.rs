//! Drivers: sockets, pacing, coding, sealing, and the HTTPS control and pull endpoints.
