//! Composite layouts of Lustre. Unequal stripes are several objects on one target, as near to the plan as they get.
//!
//! Lustre counts the stripes of each component from the beginning of the file (`lov_stripe_number` and
//! `lov_stripe_offset` of its `lov/lov_offset.c` take the offset in the file, not in the component), a plan from the
//! beginning of the part. So the list of targets of a later component is turned until its first stripe is on the first
//! server of the plan. A component ends with a whole stripe of its own, or is refused (`lod_verify_striping` of
//! `lod/lod_lov.c`, and `LSE_ALIGN_END` of `lfs`).

use super::{Made, STRIPE_MAX, UNIT, check_stripe, word};
use crate::layout::{Layout, Part};
use crate::plan_file::Plan;
use crate::servers::Server;

/// Limit of the objects of one component: what fits in the attributes of a file on every version.
const LUSTRE_OBJECTS: u64 = 160;
/// Limit of the targets that `lfs` takes for one component (fewer than `LOV_MAX_STRIPE_COUNT`).
const LUSTRE_OBJECTS_MAX: usize = 1999;
/// What is shown as less than a tenth of a hundredth is not told, and not worth more objects.
const ERROR_MIN: f64 = 0.0005;

/// What is free on each server beside all that the plan has there; `None` where there is no limit.
#[derive(Debug)]
pub(super) struct Spare(Vec<Option<i128>>);

impl Spare {
    /// Beside the files of `plan` as it has them.
    pub(super) fn new(plan: &Plan) -> Result<Self, String> {
        let limit = |server: &Server| server.capacity.map(i128::from);
        let mut spare: Vec<Option<i128>> = plan.server.iter().map(limit).collect();
        if spare.iter().all(Option::is_none) {
            return Ok(Self(spare));
        }
        for file in &plan.file {
            let bytes = file.layout(plan.server.len())?.bytes(file.bytes);
            spare.iter_mut().zip(bytes).for_each(|(spare, bytes)| {
                *spare = spare.map(|spare| spare - i128::from(bytes));
            });
        }
        Ok(Self(spare))
    }

    fn add(&mut self, bytes: &[u64]) {
        self.0.iter_mut().zip(bytes).for_each(|(spare, bytes)| {
            *spare = spare.map(|spare| spare + i128::from(*bytes));
        });
    }

    fn take(&mut self, bytes: &[u64]) {
        self.0.iter_mut().zip(bytes).for_each(|(spare, bytes)| {
            *spare = spare.map(|spare| spare - i128::from(*bytes));
        });
    }

    /// The first server with less room than these bytes take.
    fn lacking(&self, bytes: &[u64]) -> Option<usize> {
        let lacks = |(spare, bytes): (&Option<i128>, &u64)| {
            *bytes > 0 && spare.is_some_and(|spare| spare < i128::from(*bytes))
        };
        self.0.iter().zip(bytes).position(lacks)
    }
}

/// A part of the layout as Lustre has it.
#[derive(Debug)]
struct Component {
    stripe: u64,
    /// The server of each object of a round, from the beginning of the file on.
    objects: Vec<usize>,
    /// Whether servers have several of them.
    is_overstriped: bool,
    /// `None` of the last.
    end: Option<u64>,
    /// The server for which it ends before the nearest stripe to the plan's end.
    cut_for: Option<usize>,
    /// The largest difference of what a server has of it from the plan, relative to that.
    error: f64,
    /// Bytes on each server.
    made: Vec<u64>,
}

impl Component {
    /// The part of a plan that is this one from `begin` on: several objects of a server, one after the other, are one stripe.
    fn part(&self, begin: u64, planned: &Part) -> Part {
        let mut widths = vec![0_u64; planned.widths.len()];
        for &server in &self.objects {
            widths[server] = widths[server].saturating_add(self.stripe);
        }
        Part { begin, end: self.end, widths }
    }
}

/// A part of the plan, and where the component before it ends.
#[derive(Debug, Clone, Copy)]
struct Planned<'p> {
    index: usize,
    part: &'p Part,
    begin: u64,
    /// Bytes of the file.
    bytes: u64,
    /// What each server has of the part.
    each: &'p [u64],
}

pub(super) fn commands(
    plan: &Plan,
    (path, bytes): (&[u8], u64),
    parts: &[Part],
    spare: &mut Spare,
) -> Result<Made, String> {
    let mut command = "lfs setstripe".to_owned();
    let (mut lines, mut made, mut written) = (Vec::new(), Vec::new(), 0);
    let each: Vec<Vec<u64>> = parts.iter().map(|part| bytes_of(part, bytes)).collect();
    for (index, (part, each)) in parts.iter().zip(&each).enumerate() {
        spare.add(each);
        let planned = Planned { index, part, begin: written, bytes, each };
        let component = component(&planned, plan, spare)?;
        spare.take(&component.made);
        if component.error >= ERROR_MIN {
            let percent = component.error * 100.0;
            lines.push(format!(
                "# part {index}: what a server has of it differs from the plan by up to {percent:.1} %"
            ));
        }
        made.push(component.part(written, part));
        let Component { stripe, objects, end, .. } = &component;
        lines.extend(other_stripes(index, &part.widths, *stripe, objects));
        if objects.len() > 1 && written % stripe > 0 {
            let first = stripe - written % stripe;
            lines.push(format!("# part {index}: its first stripe has {first} bytes"));
        }
        if parts.len() > 1 {
            if let (Some(end), Some(planned)) = (*end, part.end)
                && end != planned
            {
                let why = component.cut_for.map_or_else(String::new, |server| {
                    format!(", because {:?} has no room for more", plan.server[server].name)
                });
                lines.push(format!("# part {index}: ends at {end} instead of {planned}{why}"));
            }
            written = end.unwrap_or(written);
            let end = end.map_or_else(|| "eof".to_owned(), |end| end.to_string());
            command = format!("{command} -E {end}");
        }
        let list: Vec<String> = objects.iter().map(usize::to_string).collect();
        let count = if component.is_overstriped { "-C" } else { "-c" };
        let (number, list) = (list.len(), list.join(","));
        command = format!("{command} -S {stripe} {count} {number} -o {list}");
    }
    lines.push(format!("{command} {}", word(path)?));
    Ok(Made { lines, parts: made })
}

/// What each server has of a part of a file of so many bytes.
fn bytes_of(part: &Part, bytes: u64) -> Vec<u64> {
    let end = part.end.unwrap_or(u64::MAX).min(bytes);
    Layout::simple(part.widths.clone()).bytes(end.saturating_sub(part.begin))
}

/// Of the objects that come near to the part's widths, those with the least error.
fn component(planned: &Planned<'_>, plan: &Plan, spare: &Spare) -> Result<Component, String> {
    let mut best: Option<Component> = None;
    let mut refused = None;
    for (stripe, counts) in overstriped(&planned.part.widths) {
        match made_of(planned, plan, spare, stripe, &counts) {
            Ok(made) => {
                if best.as_ref().is_none_or(|best| made.error < best.error - ERROR_MIN) {
                    best = Some(made);
                }
            }
            Err(why) => refused = refused.or(Some(why)),
        }
    }
    best.ok_or_else(|| refused.unwrap_or_else(|| "it lies on no server".into()))
}

/// The part in stripes of `stripe` bytes with so many objects on each server; the error says why that is impossible.
fn made_of(
    planned: &Planned<'_>,
    plan: &Plan,
    spare: &Spare,
    stripe: u64,
    counts: &[u64],
) -> Result<Component, String> {
    let Planned { index, part, begin, bytes, each } = *planned;
    check_stripe(stripe, STRIPE_MAX)?;
    let all = counts.iter().sum::<u64>();
    if all > LUSTRE_OBJECTS_MAX as u64 {
        return Err(format!(
            "part {index} needs {all} objects; Lustre has at most {LUSTRE_OBJECTS_MAX}"
        ));
    }
    let objects = counts.iter().enumerate();
    let mut objects: Vec<usize> =
        objects.flat_map(|(server, &count)| (0..count).map(move |_| server)).collect();
    let is_overstriped = objects.windows(2).any(|pair| pair[0] == pair[1]);
    turn(&mut objects, begin / stripe);
    let until =
        |end: u64| made_until(&objects, stripe, counts.len(), (begin, end.min(bytes).max(begin)));
    let (mut end, mut cut_for) = (None, None);
    if let Some(wanted) = part.end {
        let near = wanted.saturating_add(stripe / 2) / stripe * stripe;
        if near <= begin {
            return Err(format!(
                "part {index} ends at {wanted}, before a stripe of {stripe} bytes does"
            ));
        }
        cut_for = spare.lacking(&until(near));
        // The last stripe before which all servers have room.
        let fits = |stripes: &u64| spare.lacking(&until(stripes * stripe)).is_none();
        let (mut least, mut most) = (begin / stripe, near / stripe);
        while cut_for.is_some() && least + 1 < most {
            let middle = u64::midpoint(least, most);
            if fits(&middle) { least = middle } else { most = middle }
        }
        end = Some(if cut_for.is_some() { least * stripe } else { near });
    }
    let made = until(end.unwrap_or(bytes));
    let lacking = spare.lacking(&made);
    if let Some(server) = lacking.or(cut_for.filter(|_| end.is_none_or(|end| end <= begin))) {
        let name = &plan.server[server].name;
        return Err(format!(
            "part {index} in stripes of {stripe} bytes takes more of {name:?} than that has room for; plan with a capacity \
             somewhat below what it has, or with stripes that Lustre has"
        ));
    }
    let is_endless = each.iter().all(|bytes| *bytes == 0);
    let error = if is_endless { share_error(&part.widths, counts) } else { error_of(each, &made) };
    Ok(Component { stripe, objects, is_overstriped, end, cut_for, error, made })
}

/// Bytes from `begin` to `end` of the file on each of so many servers.
fn made_until(
    objects: &[usize],
    stripe: u64,
    servers: usize,
    (begin, end): (u64, u64),
) -> Vec<u64> {
    let round = stripe.saturating_mul(objects.len() as u64);
    let mut made = vec![0_u64; servers];
    for (place, server) in (0_u64..).zip(objects) {
        let before =
            |at: u64| at / round * stripe + (at % round).saturating_sub(place * stripe).min(stripe);
        made[*server] += before(end) - before(begin);
    }
    made
}

/// The largest difference of what a server has from what it should have; all, where it should have nothing.
#[expect(clippy::cast_precision_loss, reason = "for people")]
fn error_of(planned: &[u64], made: &[u64]) -> f64 {
    let of = |(planned, made): (&u64, &u64)| match (*planned, *made) {
        (0, 0) => 0.0,
        (0, _) => 1.0,
        (planned, made) => planned.abs_diff(made) as f64 / planned as f64,
    };
    planned.iter().zip(made).map(of).fold(0.0, f64::max)
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

/// Stripe sizes with the number of objects on each server that come near to these widths.
fn overstriped(widths: &[u64]) -> Vec<(u64, Vec<u64>)> {
    let widest = widths.iter().copied().max().unwrap_or(0);
    let smallest = widths.iter().copied().filter(|width| *width > 0).min().unwrap_or(widest);
    let split = |split: u64| {
        let stripe = (smallest / split).max(1).next_multiple_of(UNIT);
        let count = |width: &u64| match *width {
            0 => 0,
            width => ((width + stripe / 2) / stripe).max(1),
        };
        (stripe, widths.iter().map(count).collect::<Vec<u64>>())
    };
    let fits = |(stripe, counts): &(u64, Vec<u64>)| {
        counts.iter().sum::<u64>() <= LUSTRE_OBJECTS && *stripe <= STRIPE_MAX
    };
    let all: Vec<_> = (1..=16).map(split).filter(fits).collect();
    if !all.is_empty() {
        return all;
    }
    // Too many objects: as many as fit, in proportion.
    let sum: u128 = widths.iter().map(|width| u128::from(*width)).sum();
    let count = |width: &u64| {
        let share = u128::from(*width) * u128::from(LUSTRE_OBJECTS) / sum.max(1);
        u64::try_from(share).unwrap_or(0).max(u64::from(*width > 0))
    };
    let counts: Vec<u64> = widths.iter().map(count).collect();
    let most = counts.iter().copied().max().unwrap_or(1).max(1);
    vec![((widest / most).max(1).next_multiple_of(UNIT), counts)]
}

/// The largest difference between a server's share of a round and its share in the plan, relative to the latter.
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
