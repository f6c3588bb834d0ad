//! Files of other tools that look like a workflow of Prodigy.

use std::path::Path;

#[test]
fn steps_of_another_tool_are_refused_with_the_reason() {
    let files = [
        ("schedule: '0 1 * * *'\nsteps:\n  - {name: a, command: echo}\n", 3),
        ("steps:\n  - {name: a, command: echo}\n  - {name: b, command: ls, depends: a}\n", 2),
        ("type: graph\nsteps:\n  - {id: a, command: echo, output: X}\n", 3),
        ("steps:\n  - {name: a, shell: bash, command: echo}\n", 2),
        ("steps:\n  - {name: a, script: echo}\n", 2),
        ("steps:\n  - echo hello\n", 2),
        ("steps:\n  - {shell: ls}\n  - {name: a, command: echo}\n", 3),
    ];

    for (text, line) in files {
        let error = waypost_import::prodigy(text.as_bytes(), Path::new("p.yml")).unwrap_err();
        let waypost_import::Error::Source(error) = error else { panic!("{error}: {text}") };
        let said = error.render();
        assert!(said.contains("not a workflow of Prodigy"), "{said}");
        assert!(said.contains(&format!("p.yml:{line}:")), "{said}");
    }
}

#[test]
fn steps_of_prodigy_are_imported() {
    for text in [
        "steps:\n  - {name: a, shell: ls}\n  - claude: /x\n",
        "commands:\n  - {command: /x}\n",
        "- {name: x, args: [a]}\n",
    ] {
        assert!(waypost_import::prodigy(text.as_bytes(), Path::new("p.yml")).is_ok(), "{text}");
    }
}
