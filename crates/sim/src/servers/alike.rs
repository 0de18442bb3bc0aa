//! Which servers are of one class: calibration finds other times for each of several equal disks.

use halocline_model::profile::{DeviceProfile, whole};

use super::{Network, Profile, Server};

/// Whether both are of one class: equal devices and network paths, or measured ones that are nearly equal.
pub(super) fn alike(one: &Server, other: &Server) -> bool {
    match (&one.profile, &other.profile) {
        (Profile::Measured(device), Profile::Measured(another)) => {
            seen(device, one.network).is_like(&seen(another, other.network))
        }
        (device, another) => device == another && one.network == other.network,
    }
}

/// The service times of a device as a client sees them, behind its network path.
fn seen(device: &DeviceProfile, network: Network) -> DeviceProfile {
    let (connect_ps, per_byte_ps) =
        (whole(network.connect_us * 1e6), whole(network.ns_per_byte * 1e3));
    let mut seen = *device;
    for service in [&mut seen.read, &mut seen.write] {
        for startup in [&mut service.startup_sequential_ps, &mut service.startup_random_ps] {
            *startup = startup.saturating_add(connect_ps);
        }
        service.per_byte_ps = service.per_byte_ps.saturating_add(per_byte_ps);
    }
    seen
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;
    use std::path::Path;

    use crate::servers::ServerSet;

    fn parse(text: &str) -> ServerSet {
        ServerSet::parse(text, Path::new("servers.toml")).unwrap()
    }

    /// Each of four disks was a class of its own as soon as it was calibrated: then one disk was the slow side of a cache,
    /// and all others the fast one.
    #[test]
    fn calibrated_servers_of_one_kind_are_one_class() {
        let (mut text, mut profiles) = (String::new(), String::new());
        for (number, startup_us) in [9000, 60, 9800, 8300, 66].into_iter().enumerate() {
            let (name, per_byte_ps) = (["s", &number.to_string()].concat(), 8000 + number * 100);
            let startup =
                format!("startup_sequential_ps = 1000000, startup_random_ps = {startup_us}000000");
            let times = format!("{{ {startup}, per_byte_ps = {per_byte_ps} }}");
            let connect = 50 + number;
            writeln!(
                text,
                "[[server]]\nname = \"{name}\"\nprofile = \"{name}\"\ncapacity = \"1T\"\n\
                 network = {{ connect_us = {connect}.5 }}"
            )
            .unwrap();
            writeln!(profiles, "[profile.{name}]\nread = {times}\nwrite = {times}").unwrap();
        }
        let set = parse(&[text.clone(), profiles.clone()].concat());
        let classes: Vec<_> = set.classes().into_iter().map(|class| class.servers).collect();
        assert_eq!(classes, [vec![0, 2, 3], vec![1, 4]]);
        // A way that takes longer than the device is another class.
        let far = text.replacen("connect_us = 51.5", "connect_us = 5000.0", 1);
        let classes = parse(&[far, profiles].concat()).classes();
        assert_eq!(classes.len(), 3, "{classes:?}");
    }
}
