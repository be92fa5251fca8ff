-- ARGV: id, fence, then kind/data pairs. Returns the last seq, or -1 when the lease is lost.
local id = ARGV[1]
if not holds(id, ARGV[2]) then
  return -1
end
local now = now_ms()
local seq = -1
for at = 3, #ARGV, 2 do
  seq = offer(id, ARGV[at], ARGV[at + 1], now)
end
return seq
