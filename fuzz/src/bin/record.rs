//! A checkpoint or a run record whose digest matches its bytes, as after a change by hand.
#![no_main]

use libfuzzer_sys::fuzz_target;
use waypost::Digest;
use waypost::record::{Record, SealedRun};

fuzz_target!(|bytes: &[u8]| {
    let digest = Digest::of(bytes);
    drop(SealedRun::open(digest, bytes.to_vec()));
    if let Ok(record) = Record::open(digest, bytes.to_vec(), None) {
        assert_eq!(record.header_bytes().as_slice(), bytes);
    }
});
