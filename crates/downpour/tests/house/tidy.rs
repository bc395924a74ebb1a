//! How files look: a header, a bounded size, names from the project's own vocabulary, nothing left over.
//!
//! Sizes are ratchets. A function over the limit stands in `long_functions.txt` with its length; it may
//! shrink, and when it fits, its line must go.

use super::sources::{self, Source};
use proc_macro2::Span;
use std::collections::BTreeMap;
use syn::spanned::Spanned as _;
use syn::visit::{self, Visit};

/// Lines of a file, tests included.
const FILE_LINES_MAX: usize = 800;
/// Lines of a function, from its signature to its closing brace.
const FUNCTION_LINES_MAX: usize = 70;
/// Allowed exceptions: `path function lines`.
const LONG_FUNCTIONS: &str = include_str!("long_functions.txt");

/// Where our sources are.
const FOLDERS: &[&str] = &["crates", "fuzz"];

/// Marks of unfinished work. Written apart, so that this file does not hold them.
const LEFTOVERS: &[&str] = &[
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("X", "XX"),
    concat!("HA", "CK:"),
    concat!("dbg", "!("),
    concat!("todo", "!("),
    concat!("unimplemented", "!("),
    concat!("#[ig", "nore"),
    concat!("assert!(tr", "ue)"),
];

/// Rooms without a purpose.
const EMPTY_NAMES: &[&str] =
    &["util", "utils", "common", "helper", "helpers", "misc", "shared", "stuff"];

/// Words that the vocabulary in ARCHITECTURE.md replaces, and by what.
const REPLACED: &[(&str, &str)] = &[
    ("retransmit", "repair"),
    ("retransmission", "repair"),
    ("chunk", "block, symbol or group"),
    ("shard", "symbol"),
    ("coordinator", "secretary"),
    ("checksum", "digest"),
    ("optimizer", "tuner"),
];

#[test]
fn every_file_is_tidy() {
    let files = sources::all(FOLDERS);
    assert!(files.len() > 10, "the sources were not found");
    let mut wrong: Vec<String> = files.iter().flat_map(complaints).collect();
    wrong.extend(long_functions(&files));
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n"));
}

fn complaints(source: &Source) -> Vec<String> {
    let path = &source.path;
    let mut wrong = Vec::new();
    if !source.text.starts_with("//!") {
        wrong.push(format!("{path}:1: no header that says what the file is (`//!`)"));
    }
    let lines = source.text.lines().count();
    if lines > FILE_LINES_MAX {
        wrong.push(format!("{path}: {lines} lines, more than {FILE_LINES_MAX}"));
    }
    for (number, line) in (1..).zip(source.text.lines()) {
        for mark in LEFTOVERS.iter().filter(|mark| line.contains(**mark)) {
            wrong.push(format!("{path}:{number}: `{mark}` is left over"));
        }
        if let Some(comment) = line.trim_start().strip_prefix("//") {
            let words = comment.split(|c: char| !c.is_ascii_alphanumeric());
            // The one of UDP and IP is called so by everyone.
            let words = words.filter(|word| *word != "checksum");
            wrong.extend(replaced(words).map(|say| format!("{path}:{number}: {say}")));
        }
    }
    let stem = path.rsplit('/').next().unwrap_or(path).trim_end_matches(".rs");
    let folder = path.rsplit('/').nth(1).unwrap_or_default();
    for name in [stem, folder].iter().filter(|name| EMPTY_NAMES.contains(name)) {
        wrong.push(format!("{path}: `{name}` says nothing about what is inside"));
    }
    let mut visitor = Names { path, wrong };
    visitor.visit_file(&source.syntax);
    visitor.wrong
}

fn replaced<'a>(words: impl Iterator<Item = &'a str>) -> impl Iterator<Item = String> {
    words.filter_map(|word| {
        let lower = word.to_ascii_lowercase();
        let (_, say) = REPLACED.iter().find(|(old, _)| *old == lower)?;
        Some(format!("`{lower}`: we say {say}"))
    })
}

/// Looks at the names that a file declares. Names of others (`add_original_…`) are not ours to choose.
struct Names<'a> {
    path: &'a str,
    wrong: Vec<String>,
}

impl Names<'_> {
    fn declared(&mut self, ident: &syn::Ident) {
        let line = ident.span().start().line;
        let name = ident.to_string();
        // Types are CamelCase, the rest snake_case: split both ways.
        let mut words = String::new();
        for c in name.chars() {
            if c.is_uppercase() {
                words.push('_');
            }
            words.push(c.to_ascii_lowercase());
        }
        let all_upper = name.chars().all(|c| !c.is_lowercase());
        let words = if all_upper { name.to_lowercase() } else { words };
        for say in replaced(words.split('_')) {
            self.wrong.push(format!("{}:{line}: `{name}`: {say}", self.path));
        }
        if name.starts_with("get_") {
            self.wrong.push(format!("{}:{line}: `{name}`: without `get_`", self.path));
        }
    }

    /// What is at a socket's other end has an address, called `peer`; who is there has a role.
    fn declared_type(&mut self, ident: &syn::Ident) {
        self.declared(ident);
        if ident.to_string().contains("Peer") {
            let say = "we say receiver, sender, site or visitor";
            self.at(ident.span(), &format!("`{ident}`: {say}"));
        }
    }

    fn at(&mut self, span: Span, text: &str) {
        self.wrong.push(format!("{}:{}: {text}", self.path, span.start().line));
    }
}

impl<'ast> Visit<'ast> for Names<'_> {
    fn visit_use_glob(&mut self, glob: &'ast syn::UseGlob) {
        self.at(glob.span(), "glob import: name what is used");
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if EMPTY_NAMES.contains(&item.ident.to_string().as_str()) {
            self.at(item.ident.span(), "this module's name says nothing about what is inside");
        }
        visit::visit_item_mod(self, item);
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.declared(&item.sig.ident);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.declared(&item.sig.ident);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        self.declared(&item.sig.ident);
        visit::visit_trait_item_fn(self, item);
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.declared_type(&item.ident);
        visit::visit_item_struct(self, item);
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.declared_type(&item.ident);
        visit::visit_item_enum(self, item);
    }

    fn visit_item_const(&mut self, item: &'ast syn::ItemConst) {
        self.declared(&item.ident);
        visit::visit_item_const(self, item);
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        if let Some(ident) = &field.ident {
            self.declared(ident);
        }
        visit::visit_field(self, field);
    }

    fn visit_variant(&mut self, variant: &'ast syn::Variant) {
        self.declared(&variant.ident);
        visit::visit_variant(self, variant);
    }
}

/// Functions over the limit that are not excused, or excused for nothing.
fn long_functions(files: &[Source]) -> Vec<String> {
    let mut excused: BTreeMap<(String, String), usize> = BTreeMap::new();
    for line in LONG_FUNCTIONS.lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<_> = line.split_whitespace().collect();
        let [path, function, lines] = words[..] else { panic!("long_functions.txt: {line}") };
        excused.insert((path.to_owned(), function.to_owned()), lines.parse().expect("a number"));
    }
    let mut wrong = Vec::new();
    for source in files {
        for (function, line, lines) in Functions::of(&source.syntax) {
            let key = (source.path.clone(), function.clone());
            let limit = excused.remove(&key).unwrap_or(FUNCTION_LINES_MAX);
            if lines > limit.max(FUNCTION_LINES_MAX) {
                let path = &source.path;
                wrong.push(format!("{path}:{line}: {function} has {lines} lines, limit {limit}"));
            } else if limit > FUNCTION_LINES_MAX && lines <= FUNCTION_LINES_MAX {
                wrong.push(format!("long_functions.txt: {} {function} fits now", source.path));
            }
        }
    }
    let gone = excused.into_keys().map(|(p, f)| format!("long_functions.txt: {p} {f} is gone"));
    wrong.extend(gone);
    wrong
}

#[derive(Default)]
struct Functions(Vec<(String, usize, usize)>);

impl Functions {
    fn of(syntax: &syn::File) -> Vec<(String, usize, usize)> {
        let mut visitor = Self::default();
        visitor.visit_file(syntax);
        visitor.0
    }

    fn add(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let first = signature.span().start().line;
        let last = block.span().end().line;
        self.0.push((signature.ident.to_string(), first, last + 1 - first));
    }
}

impl<'ast> Visit<'ast> for Functions {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.add(&item.sig, &item.block);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.add(&item.sig, &item.block);
        visit::visit_impl_item_fn(self, item);
    }
}

#[test]
fn untidy_files_are_found() {
    let check = |path: &str, text: &str| {
        let syntax = syn::parse_file(text).unwrap();
        complaints(&Source { path: path.to_owned(), text: text.to_owned(), syntax })
    };
    assert_eq!(check("crates/a/src/b.rs", "//! A file.\nfn chunks_of() {}\n"), [""; 0]);
    for (path, text) in [
        ("crates/a/src/b.rs", "fn b() {}\n".to_owned()),
        ("crates/a/src/util.rs", "//! A file.\n".to_owned()),
        ("crates/a/src/b.rs", "//! A file.\nmod common {}\n".to_owned()),
        ("crates/a/src/b.rs", "//! A file.\nuse std::fmt::*;\n".to_owned()),
        ("crates/a/src/b.rs", "//! A file.\nfn get_b() {}\n".to_owned()),
        ("crates/a/src/b.rs", "//! A file.\nstruct ChunkMap;\n".to_owned()),
        ("crates/a/src/b.rs", "//! A file.\nconst SHARD_LEN: u8 = 1;\n".to_owned()),
        ("crates/a/src/b.rs", "//! Where we retransmit.\n".to_owned()),
        ("crates/a/src/b.rs", format!("//! A file.\n// {}: more\n", LEFTOVERS[0])),
        ("crates/a/src/b.rs", format!("//! A file.\n{}", "\n".repeat(FILE_LINES_MAX))),
    ] {
        assert_eq!(check(path, &text).len(), 1, "{path}: {text}");
    }
}

#[test]
fn functions_are_measured_from_signature_to_brace() {
    let text = "#[inline]\nfn a() {\n\n}\nstruct S;\nimpl S {\n    fn b(&self) {}\n}\n";
    let found = Functions::of(&syn::parse_file(text).unwrap());
    assert_eq!(found, [("a".to_owned(), 2, 3), ("b".to_owned(), 7, 1)]);
}
