//! What is told of an error, on a screen or in JSON.

use crate::exit::Exit;
use crate::view::ProblemView;

/// What is told of an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Diagnosis {
    /// A word that programs can match on.
    pub(crate) code: &'static str,
    /// How the command ends.
    pub(crate) exit: Exit,
    /// What could not be done.
    pub(crate) message: String,
    /// What to do next.
    pub(crate) hint: Option<String>,
    /// Why, outermost first.
    pub(crate) causes: Vec<String>,
    /// The problems of a file with their places, shown instead of all of the above on a screen.
    pub(crate) rendered: Option<Rendered>,
}

/// Problems of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rendered {
    /// With snippets.
    pub(crate) plain: String,
    /// With snippets and colour.
    pub(crate) styled: String,
    /// One by one.
    pub(crate) problems: Vec<ProblemView>,
    /// The hint says what they do not, and is shown below them.
    pub(crate) with_hint: bool,
}
