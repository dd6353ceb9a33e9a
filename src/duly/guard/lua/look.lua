-- look: return the state of a key. Returns nil if it is not known or has expired.
-- KEYS: the key. ARGV: now.
local found = read(KEYS[1])
if not found or is_over(found) then
  return false
end
return {
  found.state, found.holder, found.fence, found.attempts, found.losses,
  is_held(found) and found.lease_ends - now or 0,
  found.began_at, found.ended_at, found.kept_until, found.result, found.problem,
}
