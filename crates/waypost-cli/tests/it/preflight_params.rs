//! Errors before the first step: invalid params, and items from params.

use crate::rig::{Rig, check, code_of};

// Bug: for a value of the wrong type in a `--params-file`, the error had neither line nor snippet. Cause: only
// the values of the file were kept. Fix: the error looks up the value in the file.
#[test]
fn a_wrong_value_in_a_params_file_is_shown_where_it_stands() {
    let flow = "params: { count: { type: integer }, who: { pattern: '^[a-z]+$' } }\nsteps: [{ run: 'touch begun' }]\n";
    let rig = Rig::with(flow);
    rig.write("params.yaml", "# so many\ncount: many\nwho: Eve\nwhy: not\n");
    let args = ["run", "flow.yaml", "--params-file", "params.yaml"];

    check("params_file_wrong", &rig.waypost(&args));
    let told = rig.json(&[&args[..], &["--json"]].concat());
    let problems = told["error"]["problems"].as_array().unwrap();
    let lines: Vec<_> = problems.iter().map(|one| (&one["file"], &one["line"], &one["snippet"])).collect();
    let file = "params.yaml".into();
    assert_eq!(
        lines,
        [
            (&file, &2.into(), &"count: many".into()),
            (&file, &3.into(), &"who: Eve".into()),
            (&file, &4.into(), &"why: not".into())
        ]
    );
    // A value from the command line is not in the file.
    let mixed = rig.waypost(&[&args[..], &["-p", "count=2.5"]].concat());
    assert!(
        mixed.starts_with("exit 2\n") && mixed.contains("param `count` must be a whole number, not `2.5`"),
        "{mixed}"
    );
    assert!(!rig.path("begun").exists() && !rig.path(".waypost").exists());
}

// Bug: two items from a param with the same key were found only after the steps before them. Cause: items are
// made at the start of their step. Fix: items made from params alone are checked before the run.
#[test]
fn equal_keys_of_items_from_params_are_refused_early() {
    let flow = |more: &str, with: &str| {
        format!(
            "params: {{ regions: {{ type: json }} }}\nsteps:\n  - {{ id: first, run: 'touch begun' }}\n  - id: each\n    {more}\n    foreach:\n      items: ${{{{ params.regions }}}}\n      {with}\n      steps: [{{ id: w, run: 'true' }}]\n"
        )
    };
    let run = |flow: &str, regions: &str| {
        let rig = Rig::with(flow);
        let regions = format!("regions={regions}");
        let told = rig.waypost(&["run", "flow.yaml", "--id", "r", "-p", &regions]);
        (told, rig.path("begun").exists())
    };

    let rig = Rig::with(&flow("", "key: ${{ item }}"));
    check("same_key", &rig.waypost(&["run", "flow.yaml", "--id", "r", "-p", r#"regions=["eu","us","eu"]"#]));
    assert!(!rig.path("begun").exists());
    assert_eq!(code_of(&rig, &["show", "r"]), Some(5), "no run was made");
    assert_eq!(code_of(&rig, &["run", "flow.yaml", "-q", "-p", r#"regions=["eu","us"]"#]), Some(0));
    let key = "key: ${{ item.id }}";
    let (told, begun) = run(&flow("", key), r#"[{"id":1},{"id":1}]"#);
    assert!(
        told.starts_with("exit 2\n") && told.contains("items 1 and 2 of step `each` have the same key `1`"),
        "{told}"
    );
    assert!(!begun);
    for (more, with, regions) in [
        ("", "distinct: true", r#"["eu","eu"]"#),
        ("", "filter: item_index == 0", r#"["eu","eu"]"#),
        ("if: params.regions | length > 2", "", r#"["eu","eu"]"#),
        ("", key, r#"[{"id":1},{"id":2}]"#),
    ] {
        let (told, _) = run(&flow(more, with), regions);
        assert!(told.starts_with("exit 0\n"), "{more} {with}: {told}");
    }
    // Outputs of other steps are unknown before the run.
    let needs = "steps:\n  - { id: first, run: 'touch begun; echo n=1 >> $WAYPOST_OUTPUT' }\n  - id: each\n    foreach:\n      items: ${{ params.regions }}\n      key: ${{ item }}\n      filter: steps.first.outputs.n == 1\n      steps: [{ id: w, run: 'true' }]\n";
    let (told, begun) = run(&format!("params: {{ regions: {{ type: json }} }}\n{needs}"), r#"["eu","eu"]"#);
    assert!(told.starts_with("exit 1\n") && begun, "{told}");
}
