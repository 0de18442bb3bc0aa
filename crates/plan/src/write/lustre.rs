//! Composite layouts of Lustre. Unequal stripes are several objects on one target, as near to the plan as they get.
//!
//! Lustre counts the stripes of each component from the beginning of the file (`lov_stripe_number` and
//! `lov_stripe_offset` of its `lov/lov_offset.c` take the offset in the file, not in the component), a plan from the
//! beginning of the part. So the list of targets of a later component is turned until its first stripe is on the first
//! server of the plan. A component ends with a whole stripe of its own, or is refused (`lod_verify_striping` of
//! `lod/lod_lov.c`, and `LSE_ALIGN_END` of `lfs`).

use super::{STRIPE_MAX, UNIT, check_stripe, word};
use crate::layout::Part;

/// Limit of the objects of one component: what fits in the attributes of a file on every version.
const LUSTRE_OBJECTS: u64 = 160;
/// Limit of the targets that `lfs` takes for one component (fewer than `LOV_MAX_STRIPE_COUNT`).
const LUSTRE_OBJECTS_MAX: usize = 1999;

pub(super) fn commands(path: &[u8], parts: &[Part]) -> Result<Vec<String>, String> {
    let mut command = "lfs setstripe".to_owned();
    let (mut lines, mut written) = (Vec::new(), 0);
    for (index, part) in parts.iter().enumerate() {
        let (stripe, mut objects, error) = overstriped(&part.widths);
        check_stripe(stripe, STRIPE_MAX)?;
        if objects.len() > LUSTRE_OBJECTS_MAX {
            let objects = objects.len();
            return Err(format!(
                "part {index} needs {objects} objects; Lustre has at most {LUSTRE_OBJECTS_MAX}"
            ));
        }
        if error > 0.0 {
            let percent = error * 100.0;
            lines.push(format!(
                "# part {index}: shares of servers differ from the plan by up to {percent:.1} %"
            ));
        }
        if let Some(line) = other_stripes(index, &part.widths, stripe, &objects) {
            lines.push(line);
        }
        let twice = objects.windows(2).any(|pair| pair[0] == pair[1]);
        let begin = written;
        turn(&mut objects, begin / stripe);
        if objects.len() > 1 && begin % stripe > 0 {
            let first = stripe - begin % stripe;
            lines.push(format!("# part {index}: its first stripe has {first} bytes"));
        }
        if parts.len() > 1 {
            let end = match part.end {
                None => "eof".to_owned(),
                Some(end) => {
                    let near = end.saturating_add(stripe / 2) / stripe * stripe;
                    if near <= written {
                        return Err(format!(
                            "part {index} ends at {end}, before a stripe of {stripe} bytes does"
                        ));
                    }
                    if near != end {
                        lines.push(format!("# part {index}: ends at {near} instead of {end}"));
                    }
                    written = near;
                    near.to_string()
                }
            };
            command = format!("{command} -E {end}");
        }
        let list: Vec<String> = objects.iter().map(usize::to_string).collect();
        let count = if twice { "-C" } else { "-c" };
        let (number, list) = (list.len(), list.join(","));
        command = format!("{command} -S {stripe} {count} {number} -o {list}");
    }
    lines.push(format!("{command} {}", word(path)?));
    Ok(lines)
}

/// Turns the objects of a round so that the first of them has stripe `first` of the file.
fn turn(objects: &mut [usize], first: u64) {
    let round = objects.len().max(1);
    let first = usize::try_from(first % round as u64).expect("less than the objects of a round");
    objects.rotate_right(first);
}

/// Says by how much stripes are longer or shorter than planned, which shares of a round do not tell.
fn other_stripes(index: usize, widths: &[u64], stripe: u64, objects: &[usize]) -> Option<String> {
    let made = |server: usize| {
        objects
            .iter()
            .filter(|object| **object == server)
            .map(|_| stripe)
            .fold(0, u64::saturating_add)
    };
    let planned: Vec<u64> = widths.iter().copied().filter(|width| *width > 0).collect();
    let used = widths.iter().enumerate().filter(|(_, width)| **width > 0);
    let made: Vec<u64> = used.map(|(server, _)| made(server)).collect();
    if made == planned {
        return None;
    }
    let told = |all: &[u64]| match all {
        [first, rest @ ..] if rest.iter().all(|other| other == first) => first.to_string(),
        all => all.iter().map(u64::to_string).collect::<Vec<_>>().join(", "),
    };
    let (made, planned) = (told(&made), told(&planned));
    Some(format!("# part {index}: stripes of {made} bytes instead of {planned}"))
}

/// A stripe size, the server of each object of a round, and the largest difference between a server's share of the
/// round and its share in the plan, relative to the latter.
fn overstriped(widths: &[u64]) -> (u64, Vec<usize>, f64) {
    let widest = widths.iter().copied().max().unwrap_or(0);
    let smallest = widths.iter().copied().filter(|width| *width > 0).min().unwrap_or(widest);
    let mut best: Option<(f64, u64, Vec<u64>)> = None;
    for split in 1..=16 {
        let stripe = (smallest / split).max(1).next_multiple_of(UNIT);
        let count = |width: &u64| match *width {
            0 => 0,
            width => ((width + stripe / 2) / stripe).max(1),
        };
        let counts: Vec<u64> = widths.iter().map(count).collect();
        let fits = counts.iter().sum::<u64>() <= LUSTRE_OBJECTS && stripe <= STRIPE_MAX;
        let error = share_error(widths, &counts);
        if fits && best.as_ref().is_none_or(|(least, ..)| error < *least - 1e-12) {
            best = Some((error, stripe, counts));
        }
    }
    // Too many objects: as many as fit, in proportion.
    let (error, stripe, counts) = best.unwrap_or_else(|| {
        let sum: u128 = widths.iter().map(|width| u128::from(*width)).sum();
        let counts: Vec<u64> = widths
            .iter()
            .map(|&width| {
                let share = u128::from(width) * u128::from(LUSTRE_OBJECTS) / sum.max(1);
                u64::try_from(share).unwrap_or(0).max(u64::from(width > 0))
            })
            .collect();
        let stripe = (widest / counts.iter().copied().max().unwrap_or(1).max(1))
            .max(1)
            .next_multiple_of(UNIT);
        (share_error(widths, &counts), stripe, counts)
    });
    let objects = counts.iter().enumerate();
    let objects = objects.flat_map(|(server, &count)| (0..count).map(move |_| server)).collect();
    (stripe, objects, error)
}

#[expect(clippy::cast_precision_loss, reason = "for people")]
fn share_error(widths: &[u64], counts: &[u64]) -> f64 {
    let (bytes, objects) = (widths.iter().sum::<u64>() as f64, counts.iter().sum::<u64>() as f64);
    let both = widths.iter().zip(counts).filter(|(width, _)| **width > 0);
    let error = |(width, count): (&u64, &u64)| {
        let planned = *width as f64 / bytes;
        (*count as f64 / objects - planned).abs() / planned
    };
    both.map(error).fold(0.0, f64::max)
}
