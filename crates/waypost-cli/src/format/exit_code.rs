//! The meaning of exit codes of shells.

/// The first exit code of a process ended by a signal: 128 and the number of the signal.
const SIGNALS: i32 = 128;

/// Returns the meaning of an exit code that a shell or the system gives; `None` for a code of the program itself.
pub(crate) fn meaning(code: i32) -> Option<String> {
    Some(match code {
        126 => "the shell found a command, but may not execute it: check its mode and its first line".to_owned(),
        127 => "the shell did not find a command: a step has the `PATH` in its `env`, or that of `waypost run` or `resume`"
            .to_owned(),
        137 => "the step was ended by SIGKILL, often for lack of memory".to_owned(),
        141 => "a command wrote to a pipe without a reader, such as `| head`; with `pipefail` its step fails (SIGPIPE)"
            .to_owned(),
        code => format!("the step was ended by {}", signal(code - SIGNALS)?),
    })
}

fn signal(number: i32) -> Option<&'static str> {
    Some(match number {
        libc::SIGHUP => "SIGHUP",
        libc::SIGINT => "SIGINT",
        libc::SIGQUIT => "SIGQUIT",
        libc::SIGILL => "SIGILL",
        libc::SIGABRT => "SIGABRT",
        libc::SIGBUS => "SIGBUS",
        libc::SIGFPE => "SIGFPE",
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGALRM => "SIGALRM",
        libc::SIGTERM => "SIGTERM",
        libc::SIGXCPU => "SIGXCPU",
        libc::SIGXFSZ => "SIGXFSZ",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::meaning;

    #[test]
    fn only_codes_of_shell_and_system_have_a_meaning() {
        assert!(meaning(127).unwrap().starts_with("the shell did not find a command"));
        assert_eq!(meaning(139).unwrap(), "the step was ended by SIGSEGV");
        assert_eq!([0, 1, 2, 75, 125, 128, 255].map(meaning), [const { None }; 7]);
    }
}
