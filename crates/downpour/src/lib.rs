//! The product: objects, sessions, command line.
