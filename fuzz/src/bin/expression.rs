//! A text with expressions, parsed and rendered.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::json;
use waypost_workflow::expr::{Scope, Template};

fuzz_target!(|text: &str| {
    let params = json!({ "n": 3, "text": "a,b", "list": [1, "2", null], "map": { "k": true } });
    let scope = Scope::new("run", params.as_object().expect("it is a map"));
    if let Ok(template) = Template::parse(text) {
        drop(template.render(&scope));
    }
});
