//! Every limit of the object layer, named, with its reason, related by const assertions.
//!
//! A manifest is signed, and is treated as hostile all the same: nothing below is taken from it
//! without being compared with one of these.

use downpour_proto::{BlockId, Geometry};

/// Bytes of a file that share one digest, and are verified and written together.
pub const GROUP_LEN: u64 = 1 << 20;

/// Longest name of one entry: what Linux file systems allow.
pub const NAME_LEN_MAX: usize = 255;

/// Longest path below the target: PATH_MAX without its closing NUL.
pub const PATH_LEN_MAX: usize = 4095;

/// Longest text of a symbolic link.
pub const SYMLINK_LEN_MAX: usize = 4095;

/// Entries of one tree at most. About 100 bytes of memory each.
pub const ENTRIES_MAX: u32 = 1 << 22;

/// Entries of one tree that a receiver takes unless it is told to take more: a publisher costs it half a million
/// inodes and some 50 MB of memory; a hostile one, by long names, many holes and attributes, 700 MB.
pub const ENTRIES_DEFAULT: u32 = 1 << 19;

/// All names and link texts of a tree together, bytes of memory.
pub const NAMES_LEN_MAX: usize = 1 << 30;

/// The same for each entry that is taken.
pub const NAMES_LEN_OF_ENTRY: usize = 512;

/// Data extents of one file; a file in more pieces has its last holes sent as zeros.
pub const FILE_EXTENTS_MAX: usize = 1 << 17;

/// Data extents of a tree, 32 bytes of memory each.
pub const EXTENTS_MAX: u32 = 1 << 23;

/// Largest size of one file, holes counted: 1 PiB.
pub const FILE_LEN_MAX: u64 = 1 << 50;

/// Largest data space of a session, holes not counted.
pub const DATA_LEN_MAX: u64 = 1 << 46;

/// Extended attributes of one entry, names and values together. The kernel allows 64 KiB a value.
pub const XATTRS_LEN_MAX: usize = 256 << 10;

/// Extended attributes of one entry.
pub const XATTRS_MAX: usize = 1024;

/// All distinct sets of extended attributes of a tree, bytes of memory.
pub const XATTR_SETS_LEN_MAX: usize = 64 << 20;

/// A tree section is closed when its body is longer than this.
pub const SECTION_TREE_LEN: usize = 4 << 20;

/// A digest section is closed when it covers as much of the data space as those before it together, within these
/// bounds (`docs/protocol.md#MAN-2`): the first data need not wait for much to be read …
pub const SECTION_SPAN: (u64, u64) = (8 << 20, 64 << 20);

/// … and up to this where what was hashed is kept in memory until it is sent …
pub const SECTION_SPAN_KEPT: u64 = 16 << 20;

/// … or this many groups, whichever is first.
pub const SECTION_GROUPS_MAX: u32 = 1 << 16;

/// Longest section, as framed.
pub const SECTION_LEN_MAX: usize = 16 << 20;

/// Sections of one manifest.
pub const SECTIONS_MAX: u32 = 1 << 22;

/// Why an object was withdrawn, bytes; longer reasons are cut.
pub const REASON_LEN_MAX: usize = 160;

/// Manifest blocks held by a receiver before their section is complete, bytes.
pub const MANIFEST_HELD_MAX: usize = 2 * SECTION_LEN_MAX;

/// Open files of each cache of descriptors.
pub const OPEN_FILES_MAX: usize = 64;

/// Open folders of the cache of descriptors.
pub const OPEN_FOLDERS_MAX: usize = 256;

/// Notices that a receiver tells one by one; of the others it tells how many.
pub const NOTICES_MAX: usize = 1_000;

/// Problems that a scan lists before it only counts them.
pub const PROBLEMS_LISTED_MAX: usize = 10;

// A section must hold the largest single entry after a body that was just below its limit:
// 20 bytes an extent (two varints), the attributes, and names.
const _: () = assert!(
    SECTION_TREE_LEN + FILE_EXTENTS_MAX * 20 + 2 * XATTRS_LEN_MAX + 16 * 1024 < SECTION_LEN_MAX
);
// Who takes all entries takes all names.
const _: () = assert!(ENTRIES_MAX as usize * NAMES_LEN_OF_ENTRY >= NAMES_LEN_MAX);
// A digest section at its longest: each group is of a withdrawn file of its own, whose reason is longer than a digest.
const _: () = assert!(SECTION_GROUPS_MAX as usize * (REASON_LEN_MAX + 8) + 4096 < SECTION_LEN_MAX);
// Block numbers must reach the end of the data space at every MTU in use.
const _: () = assert!(BlockId::NUMBER_END as u64 * Geometry::IPV6.block_len() > DATA_LEN_MAX);
const _: () = assert!(BlockId::NUMBER_END as u64 * Geometry::IPV4.block_len() > DATA_LEN_MAX);
// Groups are numbered in 32 bits: one per MiB, and at most two more per extent.
const _: () = assert!(DATA_LEN_MAX / GROUP_LEN + 2 * (EXTENTS_MAX as u64) < u32::MAX as u64);
const _: () = assert!(FILE_LEN_MAX / GROUP_LEN < u32::MAX as u64);
