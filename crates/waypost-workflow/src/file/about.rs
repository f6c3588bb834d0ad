//! Subjects of evidence claims, and the checks of a subject's text.

use waypost_evidence::{check_connection, check_container, check_port, check_url, recorded_connection};

/// Subject type of a kind of claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum About {
    /// The step.
    Step,
    /// Path below the folder of the workflow file.
    Path,
    /// Port, on this or another host.
    Port,
    /// URL for requests.
    Url,
    /// Container, by name or id.
    Container,
    /// Connection to a PostgreSQL database.
    Database,
    /// Process, by name or process id.
    Process,
    /// Program run in the folder of the workflow file: shell code or a command.
    Program,
}

impl About {
    /// Returns the recorded form of a subject, which shows the subject type.
    pub(crate) fn recorded(self, subject: &str) -> String {
        match self {
            Self::Database => recorded_connection(subject),
            _ => subject.to_owned(),
        }
    }

    /// Returns the error in a recorded subject, and the correction. The text does not quote the subject.
    pub(crate) fn wrong(self, subject: &str) -> Option<(String, &'static str)> {
        let (checked, help) = match self {
            Self::Path if recorded_connection(subject) == subject => (
                Err("the value looks like a PostgreSQL connection".to_owned()),
                "begin a path with `./`, or write `postgres:`",
            ),
            Self::Step | Self::Path | Self::Process | Self::Program => return None,
            Self::Database => (
                check_connection(subject),
                "write `postgres: postgres://user@host/database`, with the password in PGPASSWORD or ~/.pgpass, or \
                 `postgres: env:NAME`",
            ),
            Self::Port => (check_port(subject), "write `port: 8089` or `port: host:8089`"),
            Self::Container => (check_container(subject), "write `container: web`"),
            Self::Url => (check_url(subject), "write `http: https://host/path`"),
        };
        checked.err().map(|why| (why, help))
    }
}
