//! The stored form of a header or run record. Most of a header is field names, so headers are compressed with
//! a dictionary of these names. Each header is independent, so damage affects only a single header.
//!
//! The first byte is a compression mark, or the opening brace of plain JSON.

use std::sync::LazyLock;

use waypost::record::STATE_BYTES_MAX;

use crate::compression::{self, Contexts, Dictionary};

/// Largest run record to compress; text and params of a workflow are limited to the size of a state.
pub const RUN_BYTES_MAX: usize = STATE_BYTES_MAX;
/// First byte of a header compressed with [`NAMES`].
const COMPRESSED: u8 = 3;

/// The dictionary: `header.names`, most frequent last, after the entropy tables of zstd's
/// `ZDICT_finalizeDictionary` for some hundred headers of all kinds (level 1). Without these tables,
/// compression of a header would take half as long again, and the result would be a sixth larger. The
/// dictionary is part of the format: another dictionary needs another first byte.
const NAMES: &[u8] = include_bytes!("header.dict");

static DICTIONARY: LazyLock<Dictionary> = LazyLock::new(|| Dictionary::new(NAMES));

/// Returns the stored form of a header.
pub fn encode(contexts: &mut Contexts, header: &[u8]) -> Vec<u8> {
    let mut kept = vec![COMPRESSED];
    match contexts.compress_with(&DICTIONARY, header, &mut kept) {
        Some(()) if kept.len() < header.len() && header.len() <= RUN_BYTES_MAX => kept,
        _ => header.to_vec(),
    }
}

/// Returns the header from its stored form; it may have at most `bytes_max`.
///
/// # Errors
/// The defect as text.
pub fn decode(contexts: &mut Contexts, kept: Vec<u8>, bytes_max: usize) -> Result<Vec<u8>, String> {
    match kept.first() {
        Some(&COMPRESSED) => {}
        // The digest shows whether the bytes are a header.
        _ => return Ok(kept),
    }
    let bytes = compression::size_of(&kept[1..], bytes_max)?;
    let mut header = Vec::new();
    contexts.decompress_with(&DICTIONARY, &kept[1..], bytes, &mut header)?;
    Ok(header)
}

#[cfg(test)]
mod tests {
    use waypost::Digest;

    use super::*;
    use crate::compression::Compressor;

    #[test]
    fn the_names_are_part_of_the_format() {
        let digest = Digest::of(NAMES).to_string();

        assert_eq!(
            digest, "335aa520e653ed0467f2e8c3c58c552d39321c3ed5bf85a63b135b5771fdf112",
            "kept headers need the dictionary that they were made with"
        );
        assert!(
            NAMES.ends_with(include_bytes!("header.names")),
            "what can be read of it is all that it knows"
        );
    }

    #[test]
    fn headers_come_back_and_what_claims_to_be_too_large_does_not() {
        let compressor = Compressor::default();
        let header = br#"{"v":3,"run":"r-1","scope":"main","seq":7,"token":1}"#;

        let kept = encode(&mut compressor.contexts(), header);

        assert!(kept.len() < header.len());
        assert_eq!(decode(&mut compressor.contexts(), kept.clone(), header.len()).unwrap(), header);
        decode(&mut compressor.contexts(), kept, header.len() - 1).unwrap_err();
        assert_eq!(decode(&mut compressor.contexts(), header.to_vec(), 0).unwrap(), header, "as it is");
        assert_eq!(encode(&mut compressor.contexts(), b"{}"), b"{}");
        for broken in [&[COMPRESSED][..], &[COMPRESSED, 1, 2, 3], &[COMPRESSED, 0x28, 0xb5, 0x2f, 0xfd, 0x20]]
        {
            decode(&mut compressor.contexts(), broken.to_vec(), 1_000).unwrap_err();
        }
    }
}
