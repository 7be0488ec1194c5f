//! Spreads a change of size over the ReplicaSets of a rollout in progress, so that scaling does not hasten the rollout.

use jiff::Timestamp;

/// An active ReplicaSet: its size, the deployment's greatest size when it was last scaled, and its age.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    pub(super) replicas: i32,
    pub(super) max_replicas: Option<i32>,
    pub(super) created: Timestamp,
}

/// The sizes of `shares`, in their order, that add up to `allowed` (wanted replicas plus surge).
pub(super) fn spread(shares: &[Share], allowed: i32) -> Vec<i32> {
    let total: i32 = shares.iter().map(|share| share.replicas).sum();
    let to_add = allowed - total;
    let mut order: Vec<usize> = (0..shares.len()).collect();
    // Larger sets first; among equals the newer grow first and the older shrink first.
    order.sort_by_key(|index| {
        let share = shares.get(*index);
        let age = share.map_or(0, |share| share.created.as_second());
        (std::cmp::Reverse(share.map_or(0, |share| share.replicas)), if to_add > 0 { -age } else { age })
    });
    let mut sizes: Vec<i32> = shares.iter().map(|share| share.replicas).collect();
    let mut added = 0;
    for index in &order {
        if let (Some(share), Some(size)) = (shares.get(*index), sizes.get_mut(*index)) {
            let part = proportion(*share, allowed, to_add - added);
            *size += part;
            added += part;
        }
    }
    if let Some(size) = order.first().and_then(|largest| sizes.get_mut(*largest)) {
        *size = (*size + to_add - added).max(0);
    }
    sizes
}

/// The set's part of the change, never more than what is left of it.
fn proportion(share: Share, allowed: i32, left: i32) -> i32 {
    if share.replicas == 0 || left == 0 {
        return 0;
    }
    let before = share.max_replicas.filter(|max| *max > 0).unwrap_or(allowed);
    let size = if before == 0 { 0.0 } else { f64::from(share.replicas) * f64::from(allowed) / f64::from(before) };
    let fraction = size.round() as i32 - share.replicas;
    if left > 0 { fraction.clamp(0, left) } else { fraction.clamp(left, 0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// "replicas/max …", oldest first.
    #[track_caller]
    fn check(shares: &str, allowed: i32, want: &[i32]) {
        let shares: Vec<_> = shares
            .split(' ')
            .enumerate()
            .map(|(age, share)| {
                let (replicas, max) = share.split_once('/').unwrap();
                let created = Timestamp::from_second(age as i64).unwrap();
                Share { replicas: replicas.parse().unwrap(), max_replicas: max.parse().ok(), created }
            })
            .collect();
        let sizes = spread(&shares, allowed);
        assert_eq!(sizes, want, "{allowed}");
        assert_eq!(sizes.iter().sum::<i32>(), allowed);
    }

    #[test]
    fn sizes_follow_the_proportions() {
        check("5/10 5/10", 12, &[6, 6]);
        check("5/10 5/10", 8, &[4, 4]);
        check("50/100 30/100 20/100", 200, &[100, 60, 40]);
        check("10/20 10/20", 41, &[20, 21]);
        check("5/10 5/10", 0, &[0, 0]);
        check("8/10 2/10", 5, &[4, 1]);
    }
}
