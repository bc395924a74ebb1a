//! Opens the parsers to the fuzz targets, also where cargo-fuzz does not: in `make lint`.
fn main() {
    println!("cargo::rustc-check-cfg=cfg(fuzzing)");
    println!("cargo::rustc-cfg=fuzzing");
}
