-- forget: delete a key that no caller holds. Returns nil if a caller holds it.
-- Guard: the key has no current lease.
-- KEYS: the key. ARGV: now.
local found = read(KEYS[1])
if not found then
  return 0
end
if is_held(found) then
  return false
end
redis.call('DEL', KEYS[1])
return is_over(found) and 0 or 1
