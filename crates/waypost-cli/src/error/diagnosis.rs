//! The printable form of an error, for a screen or JSON.

use crate::exit::Exit;
use crate::view::ProblemView;

/// The printable form of an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Diagnosis {
    /// A code word for programs.
    pub(crate) code: &'static str,
    /// The exit code of the command.
    pub(crate) exit: Exit,
    /// The failed action.
    pub(crate) message: String,
    /// The next action.
    pub(crate) hint: Option<String>,
    /// The causes, outermost first.
    pub(crate) causes: Vec<String>,
    /// The problems of a file with their places; replaces all other fields on a screen.
    pub(crate) rendered: Option<Rendered>,
}

/// Problems of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rendered {
    /// With snippets.
    pub(crate) plain: String,
    /// With snippets and colour.
    pub(crate) styled: String,
    /// As separate objects.
    pub(crate) problems: Vec<ProblemView>,
    /// The hint adds to the problems, and is shown below them.
    pub(crate) with_hint: bool,
}
