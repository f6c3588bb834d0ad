//! A packed header and a frame of a database store.
#![no_main]

use libfuzzer_sys::fuzz_target;
use waypost_codec::compression::Compressor;
use waypost_codec::frame::{BodyBuilder, Kind, ParsedFrame};
use waypost_codec::header;

/// Most bytes of a header in this target.
const HEADER_BYTES_MAX: usize = 2 << 20;

fuzz_target!(|bytes: &[u8]| {
    let compressor = Compressor::default();
    let mut contexts = compressor.contexts();
    drop(header::decode(&mut contexts, bytes.to_vec(), HEADER_BYTES_MAX));
    for kind in [Kind::Full, Kind::Delta] {
        if let Ok(frame) = ParsedFrame::new(bytes.to_vec(), 2, kind) {
            drop(BodyBuilder::default().apply(&mut contexts, &frame));
        }
    }
});
