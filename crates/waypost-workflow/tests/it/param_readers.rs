//! Which params a step reads, by the text of its expressions and by what it inherits.

use std::path::Path;

use waypost_workflow::file::Workflow;

/// Params that every workflow here declares.
const PARAMS: [&str; 3] = ["a", "b", "list"];

/// Returns the params that the first step of a workflow reads.
fn read_by(text: &str) -> Vec<&'static str> {
    let params = "params: {a: {default: '1'}, b: {default: '2'}, list: {type: json, default: [x]}}\n";
    let workflow = Workflow::parse(&format!("{params}{text}"), Path::new("flow.yaml"));
    let workflow = workflow.unwrap_or_else(|error| panic!("{text}: {error}"));
    let step = &workflow.steps()[0];
    PARAMS.into_iter().filter(|param| step.uses_param(param)).collect()
}

#[test]
fn a_step_reads_what_its_expressions_name() {
    let cases = [
        ("run: 'true'", vec![]),
        ("run: 'echo ${{ params.a }}'", vec!["a"]),
        ("run: 'echo ${{ params[\"b\"] }}'", vec!["b"]),
        ("run: 'echo ${{ params | tojson }}'", vec!["a", "b", "list"]),
        ("{run: 'true', if: \"params.a == '1'\"}", vec!["a"]),
        ("{run: 'true', env: {A: '${{ params.a }}'}}", vec!["a"]),
        ("{run: cat, stdin: '${{ params.b }}'}", vec!["b"]),
        ("{run: 'true', dir: '${{ params.b }}'}", vec!["b"]),
        ("{run: 'true', undo: 'rm ${{ params.a }}'}", vec!["a"]),
        ("{run: 'true', report: '${{ params.a }}'}", vec!["a"]),
        ("{run: 'true', evidence: [{file: '${{ params.b }}'}]}", vec!["b"]),
        ("{run: 'true', outputs: {x: {from: '${{ params.a }}'}}}", vec!["a"]),
        ("{run: 'true', repeat: {until: \"params.a == '1'\", max: 2}}", vec!["a"]),
        ("{run: 'true', on_failure: [{run: 'echo ${{ params.a }}'}]}", vec!["a"]),
        ("repeat: {until: 'true', max: 2}, steps: [{run: 'true'}, {run: 'echo ${{ params.b }}'}]", vec!["b"]),
    ];

    for (step, expect) in cases {
        let step = if step.starts_with('{') { step.to_owned() } else { format!("{{{step}}}") };
        assert_eq!(read_by(&format!("steps:\n  - {step}\n")), expect, "{step}");
    }
}

#[test]
fn a_step_reads_what_it_inherits() {
    let cases = [
        ("env: {A: '${{ params.a }}'}", "{run: 'true'}", vec!["a"]),
        ("defaults: {env: {B: '${{ params.b }}'}}", "{run: 'true'}", vec!["b"]),
        ("defaults: {dir: '${{ params.b }}'}", "{run: 'true'}", vec!["b"]),
        ("env: {A: '${{ params.a }}'}", "{foreach: {items: [x], steps: [{run: 'true'}]}}", vec!["a"]),
    ];

    for (above, step, expect) in cases {
        assert_eq!(read_by(&format!("{above}\nsteps:\n  - {step}\n")), expect, "{above} {step}");
    }
}

#[test]
fn a_foreach_reads_its_items_and_what_its_steps_read() {
    let each = |foreach: &str| read_by(&format!("steps:\n  - foreach: {{{foreach}}}\n"));

    assert_eq!(each("items: '${{ params.list }}', steps: [{run: 'true'}]"), ["list"]);
    assert_eq!(each("items: [x], steps: [{run: 'echo ${{ params.a }}'}]"), ["a"]);
    assert_eq!(each("items: [x], key: '${{ params.b }}', steps: [{run: 'true'}]"), ["b"]);
    assert_eq!(each("items: [x], steps: [{run: 'echo ${{ item }}'}]"), [""; 0]);
}
