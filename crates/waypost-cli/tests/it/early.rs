//! What is told before anything runs: params that do not fit, and items that params make.

use crate::rig::{Rig, check, code_of};

// What happened: of a value of the wrong type in a `--params-file` neither the line nor the snippet was told. Why: only the
// values were kept of the file. What stops it now: what is wrong is looked up in it.
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
    // What was given on the line is not in the file.
    let mixed = rig.waypost(&[&args[..], &["-p", "count=2.5"]].concat());
    assert!(
        mixed.starts_with("exit 2\n") && mixed.contains("param `count` must be a whole number, not `2.5`"),
        "{mixed}"
    );
    assert!(!rig.path("begun").exists() && !rig.path(".waypost").exists());
}

// What happened: of items from a param, two of one key were found when the steps before them were done. Why: items are made
// when their step begins. What stops it now: those that are made of params alone are looked at before.
#[test]
fn two_items_of_one_key_that_params_give_are_refused_before_anything_runs() {
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
        told.starts_with("exit 2\n") && told.contains("items 1 and 2 of step `each` have the key `1`"),
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
    // What another step decides is not known before.
    let needs = "steps:\n  - { id: first, run: 'touch begun; echo n=1 >> $WAYPOST_OUTPUT' }\n  - id: each\n    foreach:\n      items: ${{ params.regions }}\n      key: ${{ item }}\n      filter: steps.first.outputs.n == 1\n      steps: [{ id: w, run: 'true' }]\n";
    let (told, begun) = run(&format!("params: {{ regions: {{ type: json }} }}\n{needs}"), r#"["eu","eu"]"#);
    assert!(told.starts_with("exit 1\n") && begun, "{told}");
}
