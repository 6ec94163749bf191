//! A leader refuses no incarnation that its follower works with: whoever lost what it had acknowledged has renewed by then
//! (design.md 6.3).

use crate::core_sim::{PartitionView, Role};

pub(super) fn check(view: &PartitionView<'_>) -> Result<(), String> {
    for leader in &view.replicas {
        let Role::Leader { retired, over: false, .. } = &leader.now.role else { continue };
        let mut followers = view.replicas.iter().filter(|replica| {
            let said = &replica.now;
            said.role == Role::Follower && said.epoch == leader.now.epoch && !said.failed
        });
        let refused = followers.find(|replica| retired.contains(&(replica.node, replica.now.incarnation)));
        if let Some(refused) = refused {
            let incarnation = refused.now.incarnation;
            return Err(format!("node {} refuses {incarnation} of node {}", leader.node, refused.node));
        }
    }
    Ok(())
}
