-- forget: forget a key that nobody holds; nil says that somebody does.
-- Guard: not within a lease.
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
