//! Which states are one.

use super::super::action::Action;
use super::super::bounds::Bounds;
use super::*;

fn after(bounds: Bounds, actions: &[Action]) -> Key {
    let state = actions.iter().fold(State::new(bounds), |state, action| {
        state.after(*action).unwrap().unwrap_or_else(|| panic!("{action} comes to nothing"))
    });
    state.key()
}

#[test]
fn states_that_differ_by_the_names_of_nodes_are_one_and_others_are_not() {
    let bounds = Bounds { elections: 1, records: 1, ..Bounds::QUIET };
    let run = |leader, first, second| {
        [
            Action::Stand(leader),
            Action::Follow(first),
            Action::Follow(second),
            Action::Append(leader),
            Action::Fetch(first),
        ]
    };
    let keys: Vec<_> = ORDERS
        .iter()
        .map(|[a, b, c]| [a, b, c].map(|node| u8::try_from(*node).unwrap()))
        .map(|[a, b, c]| after(bounds, &run(a, b, c)))
        .collect();
    assert!(keys.iter().all(|key| *key == keys[0]), "six names for one state: {keys:x?}");
    let longer = [run(0, 1, 2).as_slice(), &[Action::Take(1)]].concat();
    assert_ne!(after(bounds, &longer), keys[0], "one holds the record");
    let both = [run(0, 1, 2).as_slice(), &[Action::Fetch(2)]].concat();
    assert_ne!(after(bounds, &both), keys[0], "both asked");
}

#[test]
fn the_order_in_which_two_followers_ask_makes_no_state_of_its_own() {
    let bounds = Bounds { elections: 1, ..Bounds::QUIET };
    let begin = [Action::Stand(0), Action::Follow(1), Action::Follow(2)];
    let one = [begin.as_slice(), &[Action::Fetch(1), Action::Fetch(2)]].concat();
    let two = [begin.as_slice(), &[Action::Fetch(2), Action::Fetch(1)]].concat();
    assert_eq!(after(bounds, &one), after(bounds, &two));
}
