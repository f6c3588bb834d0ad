//! Configuration files: text in, what counts or the rendered error out.

use std::path::Path;

use waypost_workflow::file::ConfigFile;

use crate::assert_text;

fn answer(text: &str) -> String {
    match ConfigFile::parse(text.as_bytes(), Path::new("config.yaml")) {
        Err(error) => error.render(),
        Ok(file) => {
            let mut lines = Vec::new();
            lines.extend(file.store().map(|set| format!("{}: store {}", set.line, set.value)));
            lines.extend(file.color().map(|set| format!("{}: color {}", set.line, set.value.as_str())));
            lines.extend(file.wait().map(|set| format!("{}: wait {:?}", set.line, set.value)));
            lines.extend(file.max_parallel().map(|set| format!("{}: max_parallel {}", set.line, set.value)));
            let agent = |(name, set): &(String, waypost_workflow::file::Setting<_>)| {
                let command: &waypost_workflow::file::AgentCommand = &set.value;
                format!("{}: agent {name} {}", set.line, command.shown())
            };
            lines.extend(file.agents().iter().map(agent));
            if lines.is_empty() { "nothing".to_owned() } else { lines.join("\n") }
        }
    }
}

fn answers(files: &[&str]) -> String {
    let one = |file: &&str| {
        let shown: String = file.lines().map(|line| format!("    {line}\n")).collect();
        format!("{shown}\n{}\n\n", answer(file))
    };
    files.iter().map(one).collect::<Vec<_>>().join(&format!("{}\n", "-".repeat(80)))
}

#[test]
fn what_a_configuration_says_is_read_with_its_lines() {
    assert_text(
        "config_good",
        &answers(&[
            "",
            "# nothing yet\n",
            "{}\n",
            "store: sqlite:runs.db\ncolor: never\nwait: 0s\nmax_parallel: 3\nagents:\n  claude: claude -p\n  local: [./agent, --prompt, '${{ prompt }}']\n",
        ]),
    );
}

#[test]
fn what_is_wrong_with_a_configuration_is_shown_with_its_place() {
    assert_text(
        "config_bad",
        &answers(&[
            "- store\n",
            "stoer: sqlite:x\nsteps: []\ncolour: never\n",
            "wait: 5\nwait: 6s\n",
            "store: [a]\ncolor: sometimes\nwait: soon\nmax_parallel: 0\n",
            "store: ''\nmax_parallel: '4'\nwait: [1s]\nagents: claude\n",
            "agents:\n  1st: x\n  a b: x\n  empty: ' '\n  none: []\n  no: {command: x}\n  words: [x, {a: 1}]\n",
            "store: x\n  color: never\n",
        ]),
    );
}

#[test]
fn a_file_that_is_not_there_is_no_error() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("config.yaml");

    assert!(ConfigFile::read(&missing).unwrap().is_none());
    std::fs::write(&missing, "wait: 1m\n").unwrap();
    assert!(ConfigFile::read(&missing).unwrap().is_some());
    assert!(
        ConfigFile::read(&missing.join("config.yaml")).unwrap().is_none(),
        "a file in place of its folder"
    );
    assert!(ConfigFile::read(folder.path()).is_err(), "a folder in its place");
}
