-- renew: extend a holder's lease to its full length.
-- Guard: only the holder, by its fence. An expired lease is allowed until another caller takes it.
-- KEYS: the key. ARGV: now, owner, fence, lease, room.
local found = read(KEYS[1])
if not is_of(found, ARGV[2], ARGV[3]) or found.state ~= 'held' then
  return 0
end
local lease_ends = now + tonumber(ARGV[4])
-- This comes first because a Redis that is full allows it, and then the rest of the script. If the
-- script failed, the holder would be replaced while its body runs.
keep(KEYS[1], held_until(tonumber(found.kept_until or ''), lease_ends, tonumber(ARGV[5])))
redis.call('HSET', KEYS[1], 'lease_ends', lease_ends)
return 1
