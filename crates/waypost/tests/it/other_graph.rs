//! A run is gone on with by the graph that it was made with, also where nothing is left to do.

use waypost::RunError;
use waypost::engine::OnChange;
use waypost::record::RunStatus;

use crate::faulty::World;
use crate::play::{Notes, Stage};

// A run that was completed was taken by any other graph as its own, with the state that it had ended with: as nothing was
// left to do, nobody looked at the steps. `or_resume` did the same where two programs chose one id.
#[tokio::test]
async fn a_completed_run_of_another_graph_is_refused() {
    for world in World::each() {
        let stage = Stage::default();
        let (graph, other) = (stage.fork(), stage.line());
        world.engine.run(&graph, "r", Notes::default()).await.unwrap();
        let before = world.records().await;

        let resumed = world.engine.resume(&other, "r").await;
        let or_resumed = world.engine.run(&other, "r", Notes::default()).or_resume().await;

        for refused in [resumed, or_resumed] {
            let refused = refused.unwrap_err();
            assert!(matches!(refused, RunError::Changed { .. }), "{refused}");
        }
        assert_eq!(world.records().await, before);
        assert!(world.engine.resume(&graph, "r").await.unwrap().idle);
        let adopted = world.engine.resume(&other, "r").on_change(OnChange::Adopt).await.unwrap();
        assert_eq!((adopted.status, adopted.idle), (RunStatus::Completed, true));
    }
}
