//! Which server a script runs on.

/// Sets `id`: the server's `run_id` changes with each start, its `master_replid` with each promotion. Both parts of
/// `INFO` are asked for at once, and searched without patterns: that is a good part of what a short script takes.
pub(crate) const SERVER_IDENTITY: &str = r"
local info = redis.call('INFO', 'server', 'replication')
local function id_after(label)
  local _, last = string.find(info, label, 1, true)
  return string.match(info, '^%w+', last + 1)
end
local id = id_after('run_id:') .. id_after('master_replid:')
";
