//! A workflow file, and a file of params.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use waypost_workflow::file::{Workflow, parse_params};

fuzz_target!(|bytes: &[u8]| {
    drop(Workflow::parse_bytes(bytes, Path::new("fuzz.yaml")));
    drop(parse_params(bytes, Path::new("fuzz.yaml")));
});
