-- acquire: take a key, unless another caller holds it or its body is done.
-- Guard: the key is new or expired. Or its body failed or its holder's lease expired, and the
-- fingerprint is the same. The fence always grows.
-- KEYS: the key, the fence. ARGV: now, owner, holder, fingerprint or '', lease, ttl or '', room.
local owner, holder, fingerprint = ARGV[2], ARGV[3], ARGV[4]
local lease, ttl, room = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])

local found = read(KEYS[1])
if found and is_over(found) then
  found = nil
end

local function fits()
  return not found or fingerprint == '' or not found.fingerprint or found.fingerprint == fingerprint
end

local function is_free()
  return not found or found.state == 'failed' or (found.state == 'held' and not is_held(found))
end

-- The fence is at least the current time, so it grows even if the counter was lost.
local function next_fence()
  local fence = redis.call('INCR', KEYS[2])
  if fence < now then
    fence = now
    redis.call('SET', KEYS[2], fence)
  end
  return fence
end

if is_free() and fits() then
  -- This must be the first write: a Redis that is full refuses only the first write of a script.
  local fence = next_fence()
  local attempts, losses = 1, 0
  if found then
    attempts = found.attempts + 1
    losses = found.losses + (found.state == 'held' and 1 or 0)
    fingerprint = found.fingerprint or fingerprint
  end
  local kept_until = ttl and now + ttl
  redis.call('DEL', KEYS[1])
  redis.call(
    'HSET', KEYS[1], 'state', 'held', 'owner', owner, 'holder', holder, 'fence', fence,
    'attempts', attempts, 'losses', losses, 'lease_ends', now + lease, 'began_at', now
  )
  if fingerprint ~= '' then
    redis.call('HSET', KEYS[1], 'fingerprint', fingerprint)
  end
  if kept_until then
    redis.call('HSET', KEYS[1], 'kept_until', kept_until)
  end
  keep(KEYS[1], held_until(kept_until, now + lease, room))
  found = read(KEYS[1])
end

local is_ours = found.state == 'held' and found.owner == owner
local left = found.state == 'held' and math.max(0, found.lease_ends - now) or 0
return {
  is_ours and 1 or 0, found.state, found.fence, found.holder, left, found.attempts, found.losses,
  fits() and 0 or 1, found.result, found.problem,
}
