//! Any bytes as the tree and the digests of a manifest that a publisher signed: refused, or kept within the
//! rules and written back as they stood.

#![no_main]

use arbitrary::Arbitrary;
use downpour::object::fuzzing;
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    groups: u8,
    last: bool,
    gone: u8,
    digests: Vec<u8>,
    tree: &'a [u8],
}

fuzz_target!(|input: Input| {
    // As it is, and with what every tree has in front of it.
    let ready = [&[1, 0], input.tree].concat();
    let rooted = [&[1, 2], input.tree].concat();
    for body in [input.tree, &ready, &rooted] {
        if let Some(tree) = fuzzing::tree(body) {
            let (groups, gone) = (u32::from(input.groups), u32::from(input.gone));
            fuzzing::digests(&tree, groups, input.last, gone, &input.digests);
            let ready = [&[2], &input.digests[..]].concat();
            fuzzing::digests(&tree, groups, input.last, gone, &ready);
        }
    }
});
