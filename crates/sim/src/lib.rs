//! Deterministic network of many machines in virtual time.
