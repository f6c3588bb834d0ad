//! A file for `waypost import` with a valid hash, as after a change by hand. The text of the value is read as an equal
//! value.
#![no_main]

use libfuzzer_sys::fuzz_target;
use waypost::Digest;
use waypost::store::portable::Portable;

/// The bytes before the hash: the SHA-256 of the file with a hash of zeros.
const BEGIN: &[u8] = b"{\"integrity_hash\":\"";
/// Characters of the hash.
const HASH_CHARS: usize = 64;

fuzz_target!(|bytes: &[u8]| {
    let mut text = bytes.to_vec();
    if text.starts_with(BEGIN)
        && let Some(hash) = text.get_mut(BEGIN.len()..BEGIN.len() + HASH_CHARS)
    {
        hash.fill(b'0');
        let digest = Digest::of(&text).to_string();
        text[BEGIN.len()..BEGIN.len() + HASH_CHARS].copy_from_slice(digest.as_bytes());
    }
    if let Ok(portable) = Portable::from_text(&text) {
        // White space between members is not kept.
        let written = portable.to_text();
        assert_eq!(Portable::from_text(&written).expect("it was just written"), portable);
    }
});
