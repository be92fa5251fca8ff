-- ARGV: id, fence, state, exit_reason, error (JSON, '' = none), then field/value pairs.
-- Returns 0, -1 when the lease is lost, -2 when the table forbids it.
local id, to = ARGV[1], ARGV[3]
if not holds(id, ARGV[2]) then
  return -1
end
if not TERMINAL[to] then
  return -2
end
for at = 6, #ARGV, 2 do
  redis.call('HSET', task_key(id), ARGV[at], ARGV[at + 1])
end
return move(id, to, ARGV[4], ARGV[5] ~= '' and ARGV[5] or nil, now_ms()) and 0 or -2
