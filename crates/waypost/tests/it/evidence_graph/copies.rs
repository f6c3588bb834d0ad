//! Copies of evidence near the position: a resume of many finished steps reads few records.

use std::time::Duration;

use waypost::id::ScopePath;
use waypost::memory::Part;
use waypost::record::Terms;

use super::*;

/// Two records with copies, and a tail without.
const STEPS: usize = 600;

/// Builds a chain of steps, each with a stamped pin of its file.
fn chain(desk: &Desk) -> Graph<Work> {
    let mut graph = Graph::<Work>::builder("chain");
    for step in 0..STEPS {
        let fast = Terms { fast: true, ..Terms::default() };
        let pack = Pack::all([Claim::unchanged(format!("f{step}")).on_terms(fast)]);
        graph = graph.step(format!("s{step}"), desk.notes()).evidence(move |_| pack.clone());
        if step > 0 {
            graph = graph.edge(format!("s{}", step - 1), format!("s{step}"));
        }
    }
    graph.build().unwrap()
}

/// Runs the chain. Returns the seqs of the records with copies.
async fn ran(desk: &Desk, graph: &Graph<Work>) -> Vec<u64> {
    (0..STEPS).for_each(|step| desk.write(&format!("f{step}"), "text"));
    // A later change must show in the times of the files.
    std::thread::sleep(Duration::from_millis(20));
    desk.run(graph).await;
    desk.said();
    let scan = Scan { limit: 2 * STEPS, ..Scan::of(&RunId::new("r").unwrap()) };
    let records = desk.store.scan(&scan).await.unwrap().records;
    let headers = records.iter().map(Record::header);
    headers.filter(|header| header.copies.is_some()).map(|header| header.seq).collect()
}

fn damage(desk: &Desk, seq: u64) {
    desk.store.damage(&RunId::new("r").unwrap(), &ScopePath::main(), seq, Part::Header);
}

#[tokio::test]
async fn a_resume_reads_copies_instead_of_the_records_of_ends() {
    let desk = Desk::new();
    let graph = chain(&desk);
    let copies = ran(&desk, &graph).await;
    assert_eq!(copies.len(), 2);
    // A damaged record that is read would stop the resume.
    (2..copies[0]).for_each(|seq| damage(&desk, seq));

    let outcome = desk.resume(&graph).await;

    assert!(outcome.idle);
    assert_eq!(desk.said(), Vec::<String>::new());
}

#[tokio::test]
async fn without_sound_copies_the_records_are_read() {
    let desk = Desk::new();
    let graph = chain(&desk);
    let copies = ran(&desk, &graph).await;

    damage(&desk, copies[0]);
    let lost = desk.engine().resume(&graph, "r").await.unwrap_err();

    // The record with copies is itself an end.
    assert!(matches!(lost, RunError::EvidenceLost { .. }), "{lost}");
}

#[tokio::test]
async fn a_file_changed_after_its_copy_fails_its_claim() {
    let desk = Desk::new();
    let graph = chain(&desk);
    ran(&desk, &graph).await;
    desk.write("f7", "of somebody else");

    let accepted = desk.engine().accept(&graph, "r", "s7").await.unwrap();

    assert_eq!(accepted, 1, "the copied claim fails");
    assert!(desk.resume(&graph).await.idle, "the acceptance replaces the copied claim");
    desk.write("f7", "of another one");
    assert_eq!(desk.engine().accept(&graph, "r", "s7").await.unwrap(), 1);
}
