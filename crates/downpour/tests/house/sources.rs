//! All Rust sources of the repository, read and parsed once for each rule that asks.

use std::fs;
use std::path::{Path, PathBuf};

/// One source file.
pub(super) struct Source {
    /// Path from the repository's root.
    pub path: String,
    /// Its text.
    pub text: String,
    /// Its syntax.
    pub syntax: syn::File,
}

/// The repository's root.
pub(super) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("crates/downpour is two below the root").to_owned()
}

/// Every `.rs` file below `folders` (from the root), in a stable order.
pub(super) fn all(folders: &[&str]) -> Vec<Source> {
    let mut paths = Vec::new();
    for folder in folders {
        let before = paths.len();
        collect(&root().join(folder), &mut paths);
        assert!(paths.len() > before, "{folder} has no sources: was it renamed?");
    }
    paths.sort();
    paths.into_iter().map(|path| read(&path)).collect()
}

fn collect(folder: &Path, paths: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        let name = entry.file_name();
        if path.is_dir() {
            if name != "target" && !name.to_string_lossy().starts_with('.') {
                collect(&path, paths);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            paths.push(path);
        }
    }
}

fn read(path: &Path) -> Source {
    let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let syntax = syn::parse_file(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let path = path.strip_prefix(root()).expect("below the root").to_string_lossy().into_owned();
    Source { path, text, syntax }
}

/// Whether an item is compiled for tests only.
pub(super) fn is_test_only(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("test")
            || (attribute.path().is_ident("cfg")
                && attribute.parse_args::<syn::Path>().is_ok_and(|path| path.is_ident("test")))
    })
}
