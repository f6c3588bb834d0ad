//! The nodes of a picture: the steps of a workflow file or a run.

/// Step of a picture.
pub(in crate::commands) struct Node {
    pub(super) id: String,
    pub(super) name: Option<String>,
    /// Kind of the step, if it does not run a command.
    pub(super) kind: Option<&'static str>,
    /// Places of the direct needs in the same list; indirect needs are left out.
    pub(super) needs: Vec<usize>,
    pub(super) within: Vec<Node>,
    pub(super) status: Option<NodeStatus>,
}

/// Status of a step of a run.
#[derive(Clone)]
pub(in crate::commands) struct NodeStatus {
    /// The worst status among the items.
    pub(super) worst: &'static str,
    pub(super) text: String,
}
