//! Dead letters, as people and later steps read them.

use crate::rig::Rig;

const STORES: [&str; 2] = ["sqlite:kept/waypost.db", "file:kept"];

fn code(rig: &Rig, args: &[&str]) -> Option<i32> {
    rig.call(args).status.code()
}

// What happened: after `dead-letters retry --item`, later steps read the old item beside what was made of the new one.
// Why: the item was taken from the list that was frozen when the items were found.
// What stops it now: it is taken from the state of its branch, which its steps read too.
#[test]
fn later_steps_read_the_item_that_was_worked_on() {
    let flow = r#"
steps:
  - id: e
    foreach: {items: [a, b], as: item, steps: [{id: work, run: '[ "$I" != b ]', env: {I: "${{ item }}"}}]}
  - {id: end, run: 'echo "$I $K" >> trace', env: {I: "${{ steps.e.items[1].item }}", K: "${{ steps.e.items[1].key }}"}}
"#;
    for store in STORES {
        let rig = Rig::with(flow).at(store);
        assert_eq!(code(&rig, &["run", "flow.yaml", "--id", "r", "-q"]), Some(3), "{store}");

        assert_eq!(code(&rig, &["dead-letters", "retry", "r", "b", "--item", "\"c\"", "-q"]), Some(0));

        assert_eq!(rig.read("trace"), "b b\nc b\n", "{store}");
        assert_eq!(code(&rig, &["verify", "r"]), Some(0));
    }
}
