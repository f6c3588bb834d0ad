//! A JSONPath over a document.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::json;
use waypost::json_path::JsonPath;

fuzz_target!(|text: &str| {
    let document = json!({ "items": [{ "name": "a" }, { "name": "b", "n": [1, 2, 3] }], "a b": null });
    if let Ok(path) = JsonPath::parse(text) {
        drop(path.find(&document));
        assert!(JsonPath::parse(&path.to_string()).is_ok(), "{path}");
    }
});
