//! Arrows between our crates point down only, and each crate does without what it is forbidden.
//!
//! The arrows are those of ARCHITECTURE.md, read from `cargo metadata`. A crate that is not in the table
//! fails: it must first say what it forbids.

use super::sources::{self, Source, is_test_only};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use syn::visit::{self, Visit};

/// Our crates and which of ours each may use.
const ARROWS: &[(&str, &[&str])] = &[
    ("downpour-proto", &[]),
    ("downpour-catalog", &["downpour-proto"]),
    ("downpour-transport", &["downpour-proto"]),
    ("downpour", &["downpour-catalog", "downpour-proto", "downpour-transport"]),
    ("downpour-sim", &["downpour-proto"]),
    ("downpour-lab", &[]),
];

/// All that the engine may use from outside: without std, sockets, clocks.
const ENGINE_MAY_USE: &[&str] = &["libm"];

/// Small vocabulary crates, which several of ours may name. Everything else is named by one alone, so
/// that replacing it touches one crate.
const SHARED: &[&str] =
    &["blake3", "clap", "rustix", "serde", "serde_json", "thiserror", "tokio", "toml"];

/// Paths that a crate's own sources may not mention, tests aside.
const FORBIDDEN: &[(&str, &[&str])] = &[
    ("crates/proto/src", &["std"]),
    ("crates/sim/src", &["Instant", "SystemTime", "UdpSocket", "TcpStream", "TcpListener"]),
    (
        "crates/catalog/src",
        &["clap", "hyper", "TcpStream", "TcpListener", "UdpSocket", "SystemTime", "Instant"],
    ),
    ("crates/transport/src", &["clap", "rusqlite", "sqlx"]),
    (
        "crates/downpour/src",
        &["UdpSocket", "socket2", "quinn_udp", "reed_solomon_simd", "rusqlite", "sqlx"],
    ),
];

struct Dependency {
    from: String,
    to: String,
}

/// What our crates' manifests name, development dependencies aside.
fn dependencies() -> (BTreeSet<String>, Vec<Dependency>) {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(sources::root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let text = |value: &Value| value.as_str().expect("a string").to_owned();
    let mut names = BTreeSet::new();
    let mut found = Vec::new();
    for package in metadata["packages"].as_array().expect("packages") {
        names.insert(text(&package["name"]));
        for dependency in package["dependencies"].as_array().expect("dependencies") {
            if dependency["kind"].is_null() {
                let from = text(&package["name"]);
                found.push(Dependency { from, to: text(&dependency["name"]) });
            }
        }
    }
    (names, found)
}

#[test]
fn arrows_point_down_only() {
    let (ours, dependencies) = dependencies();
    let arrows: BTreeMap<_, _> = ARROWS.iter().copied().collect();
    for name in &ours {
        assert!(arrows.contains_key(name.as_str()), "{name}: not in ARROWS; what does it forbid?");
    }
    for Dependency { from, to } in dependencies.iter().filter(|d| ours.contains(&d.to)) {
        assert!(arrows[from.as_str()].contains(&to.as_str()), "{from} may not use {to}");
    }
}

#[test]
fn a_crate_from_outside_is_named_by_one_of_ours() {
    let (ours, dependencies) = dependencies();
    let mut users: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for Dependency { from, to } in dependencies.iter().filter(|d| !ours.contains(&d.to)) {
        users.entry(to).or_default().insert(from);
    }
    for (name, users) in users {
        assert!(users.len() == 1 || SHARED.contains(&name), "{name} is named by {users:?}");
    }
}

#[test]
fn the_engine_needs_nothing_of_the_machine() {
    let (_, dependencies) = dependencies();
    for Dependency { to, .. } in dependencies.iter().filter(|d| d.from == "downpour-proto") {
        assert!(ENGINE_MAY_USE.contains(&to.as_str()), "downpour-proto may not use {to}");
    }
    let lib = std::fs::read_to_string(sources::root().join("crates/proto/src/lib.rs")).unwrap();
    for line in ["#![no_std]", "#![forbid(unsafe_code)]"] {
        assert!(lib.lines().any(|l| l == line), "crates/proto/src/lib.rs lacks {line}");
    }
}

#[test]
fn sources_keep_to_what_their_crate_may_do() {
    let mut wrong = Vec::new();
    for (folder, words) in FORBIDDEN {
        for source in sources::all(&[folder]) {
            wrong.extend(mentions(&source, words));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn a_forbidden_mention_is_found() {
    let text = "use std::net::UdpSocket;\n#[cfg(test)]\nmod tests { use std::fmt; }\n";
    let syntax = syn::parse_file(text).unwrap();
    let source = Source { path: "a.rs".to_owned(), text: text.to_owned(), syntax };
    assert_eq!(mentions(&source, &["std"]), ["a.rs:1: `std` does not belong in this crate"]);
    assert_eq!(mentions(&source, &["UdpSocket"]).len(), 1);
}

fn mentions(source: &Source, words: &[&str]) -> Vec<String> {
    let mut visitor = Mentions { words, found: Vec::new() };
    visitor.visit_file(&source.syntax);
    let path = &source.path;
    let say = |(line, word)| format!("{path}:{line}: `{word}` does not belong in this crate");
    visitor.found.into_iter().map(say).collect()
}

struct Mentions<'a> {
    words: &'a [&'a str],
    found: Vec<(usize, String)>,
}

impl<'ast> Visit<'ast> for Mentions<'_> {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_test_only(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_extern_crate(&mut self, item: &'ast syn::ItemExternCrate) {
        if !is_test_only(&item.attrs) {
            visit::visit_item_extern_crate(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if !is_test_only(&item.attrs) {
            visit::visit_item_use(self, item);
        }
    }

    fn visit_ident(&mut self, ident: &'ast proc_macro2::Ident) {
        let word = ident.to_string();
        if self.words.contains(&word.as_str()) {
            self.found.push((ident.span().start().line, word));
        }
    }
}
